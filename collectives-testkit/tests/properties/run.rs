//! One plan on one rank: every call against the model, and every element against its sum.

use collectives_alloc::budget::Budget;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::registry;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Misuse};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Lease, Request, ScratchAllocator};
use collectives_testkit::case::{Failure, Outcome};
use collectives_testkit::rig::{Handle, Replay, Rig};
use collectives_testkit::{ensure, ensure_eq};

use crate::model::{Failed, Model};
use crate::plan::{Budgets, Fault, Plan, Step};

/// The two pools of a rank, one lent from by hand and one used by calls, which share a budget.
struct Run<'r, 'w> {
    rig: &'r mut Rig<'w>,
    total: [usize; crate::plan::RANKS],
    budget: Budget,
    comm: Box<dyn Communicator>,
    scratch: Box<dyn ScratchAllocator>,
    lent: Model,
    leases: Vec<Lease>,
    handle: Handle,
    called: Model,
    graphs: Vec<(Replay, u64)>,
}

/// Does what the plan says.
pub(crate) fn follow(rig: &mut Rig<'_>, plan: Plan) -> Outcome {
    let mut run = Run::begin(rig, &plan)?;
    for (round, step) in plan.steps.into_iter().enumerate() {
        run.take(step, round)?;
        run.compare()?;
    }
    run.end()
}

impl<'r, 'w> Run<'r, 'w> {
    fn begin(rig: &'r mut Rig<'w>, plan: &Plan) -> Outcome<Self> {
        let granule = rig.granule();
        let config = ScratchConfig::with_policy(plan.policy);
        let total = plan.budgets.map(|granules| granules * granule);
        let budget = Budget::new(total[rig.rank()]);
        let model = |fault| -> Outcome<Model> {
            let policy = registry::snapshot().build_policy(&config)?;
            Ok(Model::new(policy, granule, fault))
        };
        let (lent, called) = (model(plan.faults[0])?, model(plan.faults[1])?);
        let mut pool = |fault| -> Outcome<_> {
            let comm = rig.communicator_under(Fault::layer(fault, rig.rank()))?;
            let pool = rig.pool_within(&config, rig.options(), budget.clone())?;
            Ok((comm, pool))
        };
        let (comm, scratch) = pool(plan.faults[0])?;
        let (of_handle, pool_of_handle) = pool(plan.faults[1])?;
        let handle = rig.handle(of_handle, pool_of_handle);
        Ok(Self {
            rig,
            total,
            budget,
            comm,
            scratch,
            lent,
            leases: Vec::new(),
            handle,
            called,
            graphs: Vec::new(),
        })
    }

    fn take(&mut self, step: Step, round: usize) -> Outcome {
        let unit = self.rig.granule() / 16;
        match step {
            Step::Lease(size) => self.lease(size * unit),
            Step::Complete(index) if !self.leases.is_empty() => {
                let lease = self.leases.remove(index % self.leases.len());
                self.lent.lend(lease.slot().0, false);
                let ended = match round % 3 {
                    0 => lease.complete(),
                    _ => self.scratch.release(lease),
                };
                Ok(ended?)
            }
            Step::Eager(size) => self.eager(size * unit),
            Step::Capture(size) => self.capture(size * unit),
            Step::Lost(size) => self.lose(size * unit),
            Step::Replay(index) if !self.graphs.is_empty() => {
                let index = index % self.graphs.len();
                let (graph, generation) = &mut self.graphs[index];
                self.called.replay(*generation);
                self.rig.replay(graph, round, self.rig.stream())
            }
            Step::Destroy(index) if !self.graphs.is_empty() => {
                let (graph, generation) = self.graphs.remove(index % self.graphs.len());
                drop(graph);
                self.called.claim(generation, false);
                self.settled()
            }
            Step::Trim => self.trim(),
            Step::Complete(_) | Step::Replay(_) | Step::Destroy(_) => Ok(()),
        }
    }

    fn lease(&mut self, bytes: usize) -> Outcome {
        let budgets = self.beside(self.called.mapped());
        let expected = self.lent.request(bytes, &budgets);
        let found = self.rig.lease(&mut *self.comm, &mut *self.scratch, bytes);
        let Some(generation) = agreed(expected, found.as_ref().err())? else {
            return Ok(());
        };
        let lease = found?;
        ensure_eq!(lease.slot().0, generation, "the slot of a lease");
        ensure_eq!(lease.operand().bytes, bytes, "bytes leased");
        for other in &self.leases {
            let overlap = other.operand().overlaps(lease.operand());
            ensure!(!overlap, "two leases share bytes of {}", lease.slot());
        }
        self.lent.lend(generation, true);
        self.leases.push(lease);
        Ok(())
    }

    fn eager(&mut self, bytes: usize) -> Outcome {
        let budgets = self.beside(self.lent.mapped());
        let expected = self.called.request(bytes, &budgets);
        let stream = self.rig.stream();
        let mut tensor = self.rig.tensor::<f32>(bytes / 4, 7)?;
        let reduced = self.handle.all_reduce(&mut tensor, ReduceOp::Sum, stream);
        if agreed(expected, reduced.as_ref().err())?.is_some() {
            self.rig.expect_sum("an eager call", &tensor, 7, stream)?;
        }
        Ok(())
    }

    /// Reserves for a capture; the generation that it will use, or none.
    fn reserved(&mut self, bytes: usize) -> Outcome<Option<u64>> {
        let budgets = self.beside(self.lent.mapped());
        let expected = self.called.reserve(bytes, &budgets);
        let reserved = self.handle.reserve(&[Request::new(bytes)]);
        if agreed(expected, reserved.as_ref().err())?.is_none() {
            return Ok(None);
        }
        match self.called.request(bytes, &budgets) {
            Ok(generation) => Ok(Some(generation)),
            Err(failed) => Err(Failure(format!("reserved in vain: {failed:?}"))),
        }
    }

    fn capture(&mut self, bytes: usize) -> Outcome {
        let Some(generation) = self.reserved(bytes)? else {
            return Ok(());
        };
        let (graph, tensor) = self.rig.captured(&mut self.handle, bytes / 4)?;
        self.called.claim(generation, true);
        self.graphs.push((Replay::new(&graph, tensor)?, generation));
        Ok(())
    }

    fn lose(&mut self, bytes: usize) -> Outcome {
        if self.reserved(bytes)?.is_none() {
            return Ok(());
        }
        let mut tensor = self.rig.tensor::<f32>(bytes / 4, 0)?;
        let handle = &mut self.handle;
        let body = |stream: &collectives_core::stream::Stream| {
            handle
                .all_reduce(&mut tensor, ReduceOp::Sum, stream)
                .map(drop)
        };
        let _why = self.rig.failing_capture(body)?;
        self.settled()
    }

    fn trim(&mut self) -> Outcome {
        let expected = [self.lent.trim(), self.called.trim()];
        let found = [self.scratch.trim(&mut *self.comm)?, self.handle.trim()?];
        for (expected, found) in expected.iter().zip(found) {
            ensure_eq!(found.slots, expected.slots, "slots that a trim frees");
            let (mapped, held) = (expected.mapped_bytes, expected.held_bytes);
            ensure_eq!(found.mapped_bytes, mapped, "bytes that a trim frees");
            ensure_eq!(found.held_bytes, held, "bytes that a trim leaves");
        }
        Ok(())
    }

    /// Waits until what was let go of has been released on every rank.
    fn settled(&mut self) -> Outcome {
        self.rig.settle();
        self.rig.meet()
    }

    const fn beside(&self, others: usize) -> Budgets {
        let total = self.total;
        Budgets { total, others }
    }

    fn compare(&self) -> Outcome {
        let of_leases = self.lent.difference(&self.scratch.stats());
        let of_calls = self.called.difference(&self.handle.stats());
        for (which, difference) in [("leases", of_leases), ("calls", of_calls)] {
            let difference = difference.unwrap_or_default();
            ensure!(
                difference.is_empty(),
                "the pool of {which} has {difference}"
            );
        }
        let mapped = self.lent.mapped() + self.called.mapped();
        ensure_eq!(self.budget.spent(), mapped, "bytes charged to the budget");
        Ok(())
    }

    fn end(self) -> Outcome {
        let digests = [self.scratch.stats().digest, self.handle.stats().digest];
        self.rig
            .expect_alike("decisions", &format!("{digests:?}"))?;
        self.leases.into_iter().try_for_each(Lease::complete)?;
        drop(self.graphs);
        self.rig.close(self.comm, self.scratch)?;
        self.rig.finish(self.handle)?;
        self.rig.settle();
        ensure_eq!(self.budget.spent(), 0, "bytes charged at the end");
        Ok(())
    }
}

/// The generation that serves, if the model and the pool agree on that, or none, if on why not.
fn agreed<T>(expected: Result<T, Failed>, found: Option<&Error>) -> Outcome<Option<T>> {
    let failed = match (expected, found) {
        (Ok(served), None) => return Ok(Some(served)),
        (Err(failed), Some(error)) => Some((failed, error.kind())),
        _ => None,
    };
    let alike = failed.is_some_and(|(failed, kind)| match (failed, kind) {
        (Failed::Memory { rank, capacity }, ErrorKind::OutOfMemory { rank: named, bytes }) => {
            (Rank::new(rank), capacity) == (*named, *bytes)
        }
        (Failed::Registration, ErrorKind::Misuse(Misuse::WrongDevice { .. })) => true,
        _ => false,
    });
    if alike {
        return Ok(None);
    }
    let what = failed.map(|(failed, _)| failed);
    Err(Failure(format!(
        "the call came to {found:?}, and the model to {what:?}"
    )))
}
