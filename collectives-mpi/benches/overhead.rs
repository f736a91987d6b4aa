//! What this backend costs over raw MPI calls: the same all-reduces, in turns, within one run.
//!
//! ```sh
//! MPICC=mpicc.openmpi CARGO_TARGET_DIR=target/mpi-openmpi \\
//!     cargo bench -p collectives-mpi --features system-mpi --bench overhead --no-run
//! mpirun -n 2 target/mpi-openmpi/release/deps/overhead-…
//! ```
//!
//! Both reduce the same memory, and take turns in which of them is first. Times are the median over
//! batches of the slowest rank's, and what is more that of the differences between neighbours.

#[cfg(feature = "system-mpi")]
mod present {
    use std::hint::black_box;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use collectives_core::buffer::Buffer;
    use collectives_core::collectives::Collectives;
    use collectives_core::communicator::Communicator;
    use collectives_core::error::Result;
    use collectives_core::reduce::ReduceOp;
    use collectives_core::tensor::Tensor;
    use collectives_host::device::HostDevice;
    use collectives_host::model::DeviceModel;
    use collectives_mpi::bootstrap::MpiBootstrap;
    use collectives_mpi::communicator::MpiCommunicator;
    use mpi::ffi;

    const BATCHES: usize = 41;
    const WARM_UP: usize = 4;
    const SIZES: [usize; 7] = [8, 256, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];

    pub(crate) fn run() -> Result<()> {
        let bootstrap = MpiBootstrap::of_world(Duration::from_secs(30))?;
        let device = HostDevice::new(DeviceModel::new())?;
        let comm = MpiCommunicator::connect(bootstrap, device)?;
        let version = comm.transport().mpi().version().to_owned();
        let (rank, ranks) = (comm.info().rank.index(), comm.info().world_size);
        let device = Arc::clone(comm.device());
        let stream = device.create_stream()?;
        let mut handle = Collectives::without_scratch(comm);
        if rank == 0 {
            println!(
                "{version}, {ranks} ranks, f32 all-reduce in place, median of {BATCHES} batches"
            );
            println!(
                "{:>10} {:>10} {:>10} {:>10} {:>7}",
                "bytes", "raw us", "ours us", "more us", "ratio"
            );
        }
        for bytes in SIZES {
            let count = bytes / 4;
            let batch = (1_usize << 20).div_ceil(bytes.max(4096)).max(1);
            let mut tensor = Buffer::<f32>::zeroed(&device, count, &stream)?;
            let (mut theirs, mut ours) = (Vec::new(), Vec::new());
            for index in 0..BATCHES + WARM_UP {
                let times = batch_of_both(index % 2 == 0, batch, &mut tensor, |tensor| {
                    let sum = handle.all_reduce(tensor, ReduceOp::Sum, &stream);
                    sum.map(drop)
                })?;
                if index >= WARM_UP {
                    theirs.push(times.0);
                    ours.push(times.1);
                }
            }
            let more = theirs.iter().zip(&ours).map(|(raw, ours)| ours - raw);
            let more = median(more.collect());
            let (raw, ours) = (median(theirs), median(ours));
            if rank == 0 {
                let ratio = 1.0 + more / raw;
                println!("{bytes:>10} {raw:>10.2} {ours:>10.2} {more:>10.2} {ratio:>7.3}");
            }
        }
        let _deferred = handle.close()?;
        Ok(())
    }

    /// Microseconds of one raw call and of one of ours, on the slowest rank.
    fn batch_of_both(
        raw_first: bool,
        batch: usize,
        tensor: &mut Buffer<f32>,
        mut ours: impl FnMut(&mut Buffer<f32>) -> Result<()>,
    ) -> Result<(f64, f64)> {
        let mut time_ours = |tensor: &mut Buffer<f32>| time(batch, || ours(tensor)).map(slowest);
        let before = match raw_first {
            true => None,
            false => Some(time_ours(tensor)?),
        };
        let raw = slowest(time(batch, || {
            raw_all_reduce(tensor);
            Ok(())
        })?);
        let ours = before.map_or_else(|| time_ours(tensor), Ok)?;
        Ok((raw, ours))
    }

    /// Microseconds of one call.
    fn time(batch: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
        // SAFETY: MPI is initialised.
        let _ = unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) };
        let begun = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        Ok(begun.elapsed().as_secs_f64() * 1e6 / batch as f64)
    }

    fn raw_all_reduce(tensor: &Buffer<f32>) {
        let in_place = if cfg!(target_env = "gnu") && is_open_mpi() {
            1
        } else {
            usize::MAX
        };
        let send = std::ptr::without_provenance::<std::ffi::c_void>(in_place);
        let recv = tensor.operand().addr.as_ptr();
        let count = std::ffi::c_int::try_from(tensor.count()).unwrap_or(0);
        // SAFETY: The buffer has that many elements on every rank, and streams are idle.
        let code = unsafe {
            ffi::MPI_Allreduce(
                send,
                recv,
                count,
                ffi::RSMPI_FLOAT,
                ffi::RSMPI_SUM,
                ffi::RSMPI_COMM_WORLD,
            )
        };
        assert_eq!(black_box(code), 0, "MPI_Allreduce");
    }

    fn is_open_mpi() -> bool {
        std::env::var_os("OMPI_COMM_WORLD_RANK").is_some()
    }

    /// The largest of all ranks' values.
    fn slowest(mine: f64) -> f64 {
        let mut all = 0.0;
        let (from, to) = (&raw const mine, &raw mut all);
        // SAFETY: Both are one double on every rank.
        let _ = unsafe {
            ffi::MPI_Allreduce(
                from.cast(),
                to.cast(),
                1,
                ffi::RSMPI_DOUBLE,
                ffi::RSMPI_MAX,
                ffi::RSMPI_COMM_WORLD,
            )
        };
        all
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

#[cfg(feature = "system-mpi")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A test run of all targets starts this without a launcher, where there is nothing to measure.
    if std::env::args().any(|word| word == "--test") {
        return Ok(());
    }
    present::run()?;
    Ok(())
}

#[cfg(not(feature = "system-mpi"))]
fn main() {
    if let Err(error) = collectives_mpi::availability() {
        println!("nothing to measure: {error}");
    }
}
