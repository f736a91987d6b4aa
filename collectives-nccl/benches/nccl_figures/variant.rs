//! The ways to make one all-reduce, ours and by hand.

use std::ffi::c_void;
use std::sync::Arc;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Misuse, Result};
use collectives_core::path::{OpReport, Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor as _;
use collectives_nccl::communicator::NcclCommunicator;
use half::bf16;
use nccl_sys::{DataType, Nccl, RedOp};

use crate::driver::Driver;

/// A way to make an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Ours, on a buffer in a window.
    ZeroCopy,
    /// The library's call on the same buffer.
    ZeroCopyByHand,
    /// The same as [`Variant::ZeroCopyByHand`], once more: what lies between the two is noise.
    ZeroCopyAgain,
    /// Ours, staged, where the caller keeps the order.
    Staged,
    /// The same copies and the same call, by hand.
    StagedByHand,
    /// The same as [`Variant::StagedByHand`], once more.
    StagedAgain,
    /// Ours, staged, ordered by events.
    StagedEvents,
    /// Ours, on ordinary memory.
    Direct,
    /// What the table chooses for ordinary memory.
    Auto,
}

pub(crate) const ALL: [Variant; 9] = [
    Variant::ZeroCopy,
    Variant::ZeroCopyByHand,
    Variant::ZeroCopyAgain,
    Variant::Staged,
    Variant::StagedByHand,
    Variant::StagedAgain,
    Variant::StagedEvents,
    Variant::Direct,
    Variant::Auto,
];

pub(crate) type Handle = Collectives<NcclCommunicator, Box<dyn ScratchAllocator>>;

/// One rank's communicators, and buffers of one size.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) nccl: &'static Nccl,
    pub(crate) driver: Driver,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Stream,
    /// Whose scratch leaves order to its caller; the library's own calls go to the same communicator.
    pub(crate) caller: Handle,
    /// Whose scratch orders by events.
    pub(crate) events: Handle,
    pub(crate) window: Buffer<bf16>,
    pub(crate) plain: Buffer<bf16>,
    /// What the last call of [`Variant::Auto`] did.
    pub(crate) auto: Option<Path>,
}

pub(crate) fn handle(comm: NcclCommunicator, ordering: &str) -> Result<Handle> {
    let text = format!("[scratch]\npolicy = \"geometric\"\nordering = \"{ordering}\"\n");
    Ok(Collectives::new(
        comm,
        ScratchConfig::from_toml(&text)?.build()?,
    ))
}

impl Ways {
    /// Makes buffers of another size, and what scratch they take.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<()> {
        let count = bytes / 2;
        self.window = self.caller.symmetric_buffer(count)?;
        let _ = self.caller.trim()?;
        self.plain = Buffer::zeroed(&self.device, count, &self.stream)?;
        for handle in [&mut self.caller, &mut self.events] {
            let _ = handle.reserve(&[Request::new(bytes)])?;
        }
        Ok(())
    }

    /// Runs every way once on known inputs and compares every element.
    pub(crate) fn check(&mut self, ranks: usize) -> Result<()> {
        let count = self.plain.len();
        let small = |index: usize| f32::from(u8::try_from(index % 13).unwrap_or(0));
        let input: Vec<_> = (0..count)
            .map(|index| bf16::from_f32(small(index)))
            .collect();
        let times = f32::from(u8::try_from(ranks).unwrap_or(0));
        let sum = |index| bf16::from_f32(small(index) * times);
        for variant in ALL {
            self.window.write(&input, &self.stream)?;
            self.plain.write(&input, &self.stream)?;
            self.call(variant)?;
            let found = match variant.in_window() {
                true => self.window.read(&self.stream)?,
                false => self.plain.read(&self.stream)?,
            };
            if let Some(wrong) = (0..count).find(|&index| found[index] != sum(index)) {
                let text = format!("{variant:?}: element {wrong} of {count} is wrong");
                return Err(Error::new(ErrorKind::System(text)));
            }
        }
        // Sums in place would grow without end.
        let zeros = vec![bf16::ZERO; count];
        self.window.write(&zeros, &self.stream)?;
        self.plain.write(&zeros, &self.stream)
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        raw(&self.stream)
    }

    /// Enqueues one all-reduce.
    #[inline]
    pub(crate) fn call(&mut self, variant: Variant) -> Result<()> {
        match variant {
            Variant::ZeroCopy => {
                self.caller.set_staging(Staging::Auto);
                reduce(
                    &mut self.caller,
                    &mut self.window,
                    &self.stream,
                    Path::ZeroCopy,
                )
            }
            Variant::ZeroCopyByHand | Variant::ZeroCopyAgain => {
                let at = self.window.operand().addr.value();
                self.by_hand(at)
            }
            Variant::Staged => {
                self.caller.set_staging(Staging::Forced);
                reduce(
                    &mut self.caller,
                    &mut self.plain,
                    &self.stream,
                    Path::Staged,
                )
            }
            Variant::StagedByHand | Variant::StagedAgain => self.staged_by_hand(),
            Variant::StagedEvents => {
                self.events.set_staging(Staging::Forced);
                reduce(
                    &mut self.events,
                    &mut self.plain,
                    &self.stream,
                    Path::Staged,
                )
            }
            Variant::Direct => {
                self.events.set_staging(Staging::Never);
                reduce(
                    &mut self.events,
                    &mut self.plain,
                    &self.stream,
                    Path::Direct,
                )
            }
            Variant::Auto => {
                self.events.set_staging(Staging::Auto);
                let report =
                    self.events
                        .all_reduce(&mut self.plain, ReduceOp::Sum, &self.stream)?;
                self.auto = Some(report.path);
                Ok(())
            }
        }
    }

    fn by_hand(&self, at: usize) -> Result<()> {
        let at = std::ptr::with_exposed_provenance_mut::<c_void>(at);
        let stream = nccl_sys::Stream(self.raw());
        let comm = self.caller.communicator().as_raw();
        // SAFETY: The buffer is as long as the count says and lives as long as this; nothing else
        // uses the communicator meanwhile.
        let called = unsafe {
            self.nccl.all_reduce(
                at,
                at,
                self.plain.len(),
                DataType::BFLOAT16,
                RedOp::SUM,
                comm,
                stream,
            )
        };
        called.map_err(|error| Error::new(ErrorKind::System(error.to_string())))
    }

    fn staged_by_hand(&self) -> Result<()> {
        let (window, plain) = (self.window.operand(), self.plain.operand());
        let (slot, tensor) = (window.addr.value(), plain.addr.value());
        // SAFETY: Two buffers of this length; the stream is ours.
        unsafe { self.driver.copy(slot, tensor, plain.bytes, self.raw()) }?;
        self.by_hand(slot)?;
        // SAFETY: As above.
        unsafe { self.driver.copy(tensor, slot, plain.bytes, self.raw()) }
    }
}

impl Variant {
    pub(crate) fn in_window(self) -> bool {
        matches!(
            self,
            Self::ZeroCopy | Self::ZeroCopyByHand | Self::ZeroCopyAgain
        )
    }
}

/// Fails where a call took another path than it should.
pub(crate) fn took(report: OpReport, path: Path) -> Result<()> {
    match report.path == path {
        true => Ok(()),
        false => Err(Misuse::Other(format!("wanted {path}, and got {report:?}")).into()),
    }
}

/// A stream as the driver and the library know it.
pub(crate) fn raw(stream: &Stream) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(stream.raw())
}

fn reduce(
    handle: &mut Handle,
    tensor: &mut Buffer<bf16>,
    stream: &Stream,
    path: Path,
) -> Result<()> {
    took(handle.all_reduce(tensor, ReduceOp::Sum, stream)?, path)
}
