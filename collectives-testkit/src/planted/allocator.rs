//! Bugs in an allocator, its options and its configuration.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::{DomainMode, OnMiss, Options, Ordering, Seal};
use collectives_core::agreement::Record;
use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Misuse, Refusal, Result};
use collectives_core::path::Reason;
use collectives_core::rank::CaptureId;
use collectives_core::scratch::{
    Lease, LeaseHold, Plan, Request, ScratchAllocator, SlotId, Splitting, Trimmed,
};
use collectives_core::stats::Stats;
use collectives_core::stream::{Fence, StreamRef};

use crate::planted::Planted;
use crate::planted::rough::Rough;

/// The configuration in a text, or what the bug reads there.
pub(crate) fn config(bug: Option<Planted>, text: &str) -> Result<ScratchConfig> {
    let config = ScratchConfig::from_toml(text);
    match bug {
        Some(Planted::ConfigLenient) => Ok(config.unwrap_or_default()),
        _ => config,
    }
}

/// The options, or what the bug makes of them.
pub(crate) fn options(bug: Option<Planted>, mut options: Options) -> Options {
    match bug {
        Some(Planted::CapIgnored) => options.cap = None,
        Some(Planted::LimitIgnored) => options.limit = None,
        Some(Planted::CapOffByOne) => options.cap = options.cap.map(|cap| cap - 1),
        Some(Planted::OnMissFlipped) => {
            options.on_miss = match options.on_miss {
                OnMiss::Error => OnMiss::Fallback,
                _ => OnMiss::Error,
            };
        }
        Some(Planted::SealIgnored) => options.seal = Seal::Never,
        Some(Planted::SlotsPerStream) => options.domain = DomainMode::Stream,
        Some(Planted::GoneStreamsKeepSlots) => options.ordering = Ordering::Caller,
        Some(Planted::DomainsShared) => options.domain = DomainMode::Shared,
        _ => {}
    }
    options
}

/// The allocator, or the one that the bug makes of it.
pub(crate) fn bugged(
    bug: Option<Planted>,
    rank: usize,
    inner: Box<dyn ScratchAllocator>,
) -> Box<dyn ScratchAllocator> {
    match bug {
        Some(
            bug @ (Planted::ReplaceWithoutClaims
            | Planted::TiesByAddress
            | Planted::SlotsMove
            | Planted::UnevenOffsets),
        ) => Box::new(Rough::new(bug)),
        Some(bug) => Box::new(BuggedAllocator {
            bug,
            rank,
            inner,
            leases: Arc::default(),
            lent: None,
            fence: None,
            failed: None,
        }),
        None => inner,
    }
}

#[derive(Debug)]
struct BuggedAllocator {
    bug: Planted,
    rank: usize,
    inner: Box<dyn ScratchAllocator>,
    leases: Arc<Mutex<Vec<Option<Lease>>>>,
    /// The slot lent last.
    lent: Option<SlotId>,
    fence: Option<Fence>,
    failed: Option<ErrorKind>,
}

impl BuggedAllocator {
    fn is(&self, bug: Planted) -> bool {
        self.bug == bug
    }

    fn served(
        &mut self,
        comm: &mut dyn Communicator,
        lease: Lease,
        stream: &StreamRef,
    ) -> Result<Lease> {
        self.lent = Some(lease.slot());
        match self.bug {
            Planted::LeasesEndAtOnce => {
                let shown = lease.seen_through(Arc::new(Nothing));
                lease.complete()?;
                return Ok(shown);
            }
            Planted::ReleasedInStackOrder => {
                let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
                let hold = Stacked {
                    index: leases.len(),
                    leases: Arc::clone(&self.leases),
                };
                let shown = lease.seen_through(Arc::new(hold));
                leases.push(Some(lease));
                return Ok(shown);
            }
            Planted::HitAgrees => {
                comm.agree(&Record::new(), Duration::from_secs(2))?;
            }
            Planted::HitRecords => {
                let device = Arc::clone(comm.device());
                let fence = match self.fence.take() {
                    Some(fence) => fence,
                    None => device.create_fence()?,
                };
                device.record(&fence, stream)?;
                self.fence = Some(fence);
            }
            _ => {}
        }
        Ok(lease)
    }
}

#[deny(clippy::missing_trait_methods)]
impl ScratchAllocator for BuggedAllocator {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn acquire(
        &mut self,
        comm: &mut dyn Communicator,
        mut request: Request,
        stream: &StreamRef,
        mut capture: Option<CaptureId>,
    ) -> Result<Lease> {
        match self.bug {
            Planted::ZeroBytesServed => request.bytes = request.bytes.max(1),
            Planted::PartSizedRequests => {
                request.bytes = request.bytes.saturating_sub(self.rank).max(1);
            }
            Planted::GrowsInCapture => capture = None,
            Planted::FailureSticks => {
                if let Some(kind) = &self.failed {
                    return Err(Error::new(kind.clone()));
                }
            }
            _ => {}
        }
        match self.inner.acquire(comm, request, stream, capture) {
            Ok(lease) => self.served(comm, lease, stream),
            Err(error) => {
                if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) {
                    self.failed = Some(error.kind().clone());
                }
                let missed = matches!(error.kind(), ErrorKind::NeedsReserve { .. });
                let lost = self.is(Planted::MissTextLost)
                    || self.is(Planted::MissDiffersByRank) && self.rank % 2 == 1;
                if missed && lost {
                    return Err(Error::new(ErrorKind::Refused {
                        bytes: request.bytes,
                        why: Refusal::Policy,
                    }));
                }
                Err(error)
            }
        }
    }

    fn release(&mut self, lease: Lease) -> Result<()> {
        if self.is(Planted::ReleasedOutOfOrderLost) && self.lent != Some(lease.slot()) {
            std::mem::forget(lease);
            return Ok(());
        }
        self.inner.release(lease)
    }

    fn fallback_reason(&self, error: &Error) -> Option<Reason> {
        if self.is(Planted::FallbackUndeclared) {
            return None;
        }
        self.inner.fallback_reason(error)
    }

    fn plan(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        let mut plan = self.inner.plan(comm, requests)?;
        match self.bug {
            Planted::PlanHalves => {
                plan.capacity_bytes /= 2;
                plan.mapped_bytes /= 2;
            }
            Planted::PlanHopes => plan.refused = 0,
            _ => {}
        }
        Ok(plan)
    }

    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        if self.is(Planted::ReservesOneByOne) {
            for request in requests {
                self.inner.reserve(comm, &[*request])?;
            }
        }
        self.inner.reserve(comm, requests)
    }

    fn seal(&mut self) {
        self.inner.seal();
    }

    fn trim(&mut self, comm: &mut dyn Communicator) -> Result<Trimmed> {
        if self.is(Planted::TrimDoesNothing) {
            return Ok(Trimmed::default());
        }
        if self.is(Planted::MismatchRemains) {
            if let Some(kind) = &self.failed {
                return Err(Error::new(kind.clone()));
            }
            let trimmed = self.inner.trim(comm);
            self.failed = trimmed.as_ref().err().map(|error| error.kind().clone());
            return trimmed;
        }
        let trimmed = self.inner.trim(comm)?;
        Ok(match self.bug {
            Planted::TrimHidesHeld => Trimmed {
                held_bytes: 0,
                ..trimmed
            },
            _ => trimmed,
        })
    }

    fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::take(&mut *leases);
        drop(leases);
        left.into_iter().flatten().try_for_each(Lease::complete)?;
        self.inner.close(comm)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        match self.bug {
            Planted::StatsUndercount => {
                for slot in &mut stats.slots {
                    slot.mapped /= 2;
                }
            }
            Planted::HitsUncounted => stats.hits = 0,
            Planted::ReplaysForgotten => {
                stats.replays = stats.slots.iter().map(|slot| slot.replays).sum();
            }
            _ => {}
        }
        stats
    }

    fn max_windows(&mut self, comm: &mut dyn Communicator) -> Result<Option<usize>> {
        let limit = self.inner.max_windows(comm)?;
        Ok(limit.filter(|_| !self.is(Planted::BuffersUnbounded)))
    }

    fn note_capture(&mut self, device: &dyn Device, capture: CaptureId, stream: &StreamRef) {
        if !self.is(Planted::CapturesUnheard) {
            self.inner.note_capture(device, capture, stream);
        }
    }

    fn splitting(&self) -> Option<Splitting> {
        match self.bug {
            Planted::PieceIgnored => None,
            _ => self.inner.splitting(),
        }
    }

    fn note_pieces(&mut self, pieces: u64) {
        if !self.is(Planted::PiecesUncounted) {
            self.inner.note_pieces(pieces);
        }
    }
}

#[derive(Debug)]
struct Nothing;

impl LeaseHold for Nothing {
    fn complete(&self) -> Result<()> {
        Ok(())
    }

    fn abandon(&self) {}
}

/// Gives a lease back only if it is the last that is out.
#[derive(Debug)]
struct Stacked {
    index: usize,
    leases: Arc<Mutex<Vec<Option<Lease>>>>,
}

impl LeaseHold for Stacked {
    fn complete(&self) -> Result<()> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let later = leases.iter().skip(self.index + 1).any(Option::is_some);
        let lease = leases.get_mut(self.index);
        match lease {
            Some(_) if later => Ok(()),
            Some(lease) => lease.take().map_or(Ok(()), Lease::complete),
            None => Err(Misuse::Other("no such lease".to_owned()).into()),
        }
    }

    fn abandon(&self) {
        let _lost = self.complete();
    }
}
