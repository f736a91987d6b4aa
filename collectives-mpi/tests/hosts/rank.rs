//! What the ranks on those hosts do: reduce, say what they saw, and reduce on until they are cut off.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::reduce::ReduceOp;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_mpi::bootstrap::MpiBootstrap;
use collectives_mpi::communicator::MpiCommunicator;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Where ranks leave what they have to say.
pub(crate) const FOLDER: &str = "COLLECTIVES_TEST_HOSTS";

/// How long a rank waits for others in an operation.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3);

/// How long a rank may live, whatever happens.
const LIFE: Duration = Duration::from_secs(60);

/// Runs this rank and ends the process, or returns where the process is no rank.
pub(crate) fn dispatch() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let _dies = set_parent_process_death_signal(Some(Signal::KILL));
    thread::spawn(|| {
        thread::sleep(LIFE);
        std::process::abort();
    });
    let folder = PathBuf::from(folder);
    if let Err(error) = run(&folder) {
        eprintln!("{error}");
        let _said = fs::write(folder.join("error"), error.to_string());
    }
    std::process::exit(1);
}

fn run(folder: &std::path::Path) -> Result<()> {
    let bootstrap = MpiBootstrap::of_world(LIFE / 2)?;
    let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
    let comm = MpiCommunicator::connect_within(bootstrap, device, DEADLINE)?;
    let (rank, ranks) = (comm.info().rank, comm.info().world_size);
    let windows = format!("{:?}", comm.capabilities().symmetric);
    let device = Arc::clone(comm.device());
    let stream = device.create_stream()?;
    let mut handle = Collectives::without_scratch(comm);
    let said = |error: std::io::Error| Error::new(ErrorKind::System(error.to_string()));
    let mut round = 0_u32;
    loop {
        for count in [1, 1000, 500_000] {
            let own = vec![rank.0 + 1 + round; count];
            let mut tensor = Buffer::from_slice(&device, &own, &stream)?;
            handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
            let sum: u32 = (0..u32::try_from(ranks).unwrap_or(0))
                .map(|rank| rank + 1 + round)
                .sum();
            if tensor.read(&stream)?.iter().any(|&value| value != sum) {
                return Err(Error::new(ErrorKind::System("a wrong sum".to_owned())));
            }
        }
        round += 1;
        if round == 3 {
            let pid = std::process::id();
            let text = format!("{pid}\n{windows}\n");
            let ready = folder.join(format!("rank-{rank}.new"));
            fs::write(&ready, text).map_err(said)?;
            fs::rename(&ready, folder.join(format!("rank-{rank}"))).map_err(said)?;
        }
    }
}
