//! Several operations as one.

use super::ops::common_dtype;
use super::route::{self, Route};
use super::staged::{self, aligned};
use super::{Collectives, describe};
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::error::{Misuse, Result};
use crate::memory::Memory;
use crate::path::{Kernel, OpReport, Path, Reason};
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::{Lease, ScratchAllocator, Site};
use crate::stream::Stream;
use crate::tensor::Tensor;
use crate::work::Work;

/// Operations that are enqueued together, so that messages inside may meet in any order.
///
/// Dropping one without having returned it enqueues nothing.
#[derive(Debug)]
pub struct Group<'c> {
    rank: Rank,
    calls: Vec<Collective<'c>>,
    owners: Vec<Memory>,
}

impl<'c> Group<'c> {
    /// Adds [`Collectives::all_reduce`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn all_reduce(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
    ) -> Result<&mut Self> {
        let counts = Counts::Even(tensor.count());
        self.add(Op::AllReduce(op), Some(&*tensor), Some(&*tensor), counts)
    }

    /// Adds [`Collectives::broadcast`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn broadcast(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        root: Rank,
    ) -> Result<&mut Self> {
        let counts = Counts::Even(tensor.count());
        let send = (root == self.rank).then_some(&*tensor);
        self.add(Op::Broadcast { root }, send, Some(&*tensor), counts)
    }

    /// Adds [`Collectives::all_gather_v`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn all_gather_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &'c [usize],
    ) -> Result<&mut Self> {
        let counts = Counts::Uneven(counts);
        self.add(Op::AllGather, Some(send), Some(&*recv), counts)
    }

    /// Adds [`Collectives::reduce_scatter_v`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn reduce_scatter_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &'c [usize],
        op: ReduceOp,
    ) -> Result<&mut Self> {
        let counts = Counts::Uneven(counts);
        self.add(Op::ReduceScatter(op), Some(send), Some(&*recv), counts)
    }

    /// Adds [`Collectives::send`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn send(&mut self, tensor: &(impl Tensor + ?Sized), to: Rank) -> Result<&mut Self> {
        let counts = Counts::Even(tensor.count());
        self.add(Op::Send { to }, Some(tensor), None::<&dyn Tensor>, counts)
    }

    /// Adds [`Collectives::recv`].
    ///
    /// # Errors
    ///
    /// As there, for what can be known now.
    pub fn recv(&mut self, tensor: &mut (impl Tensor + ?Sized), from: Rank) -> Result<&mut Self> {
        let counts = Counts::Even(tensor.count());
        self.add(
            Op::Recv { from },
            None::<&dyn Tensor>,
            Some(&*tensor),
            counts,
        )
    }

    fn add(
        &mut self,
        op: Op<'c>,
        send: Option<&(impl Tensor + ?Sized)>,
        recv: Option<&(impl Tensor + ?Sized)>,
        counts: Counts<'c>,
    ) -> Result<&mut Self> {
        let dtype = common_dtype(send, recv)?;
        self.calls.push(describe(op, send, recv, dtype, counts));
        let owners = [send.and_then(Tensor::owner), recv.and_then(Tensor::owner)];
        self.owners.extend(owners.into_iter().flatten().cloned());
        Ok(self)
    }
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Enqueues several operations as one group; reports are in the order they were added.
    ///
    /// All that is staged shares one lease, since a group is never staged in pieces. If that cannot be
    /// had, the whole group takes the ordinary path or fails, as configured.
    ///
    /// # Errors
    ///
    /// Those of `body` and of the operations; nothing was enqueued then, unless
    /// [`Error::poisons`](crate::error::Error::poisons).
    pub fn group<'c>(
        &mut self,
        stream: &Stream,
        body: impl FnOnce(&mut Group<'c>) -> Result<()>,
    ) -> Result<Vec<OpReport>> {
        let mut group = Group {
            rank: self.rank,
            calls: Vec::new(),
            owners: Vec::new(),
        };
        body(&mut group)?;
        self.run_group(group, stream)
            .map_err(|error| self.with_context(error, "group"))
    }

    fn run_group(&mut self, mut group: Group<'_>, stream: &Stream) -> Result<Vec<OpReport>> {
        let mut capture = None;
        for call in &mut group.calls {
            if self.look_up_addresses {
                *call = self.looked_up(call);
            }
            capture = self.check(call, stream)?;
        }
        check_disjoint(&group.calls)?;
        let captured = capture.is_some();
        let routes: Vec<_> = group
            .calls
            .iter()
            .map(|call| self.route(call, captured))
            .collect();
        let site = Site { stream, capture };
        let lease = self.lease_for(&group.calls, &routes, site)?;
        let mut offset = 0;
        let (mut into, mut out) = (Vec::new(), Vec::new());
        let mut reports = Vec::with_capacity(routes.len());
        for (call, route) in group.calls.iter_mut().zip(routes) {
            let (path, reason, kernel) = match (route, &lease) {
                (Route::Stage { sides, kernel }, Ok(Some(lease))) => {
                    let bytes = staged::scratch_bytes(call, sides, self.world_size)?;
                    let scratch = lease.operand().slice(offset, bytes)?;
                    offset += aligned(bytes)?;
                    reports.push(OpReport::staged(call, lease, kernel));
                    let copies;
                    (*call, copies) = staged::stage(call, sides, scratch, self.world_size)?;
                    into.extend(copies.into);
                    out.extend(copies.out);
                    continue;
                }
                (Route::Stage { .. }, Err(reason)) => (Path::Fallback, *reason, Kernel::Ordinary),
                (Route::Stage { .. }, Ok(None)) => {
                    (Path::Direct, Reason::StagingOff, Kernel::Ordinary)
                }
                (
                    Route::AsIs {
                        path,
                        reason,
                        kernel,
                    },
                    _,
                ) => (path, reason, kernel),
            };
            route::permit(call, path, reason, self.fallback)?;
            reports.push(OpReport::unstaged(call, path, reason, kernel));
        }
        if !group.calls.is_empty() {
            let mut owners: Vec<_> = group.owners.iter().collect();
            let lease = lease.as_ref().ok().and_then(Option::as_ref);
            let work = Work {
                into: &into,
                calls: &group.calls,
                out: &out,
            };
            self.enqueue(&work, lease, &mut owners, site)?;
        }
        if let Ok(Some(lease)) = lease {
            self.scratch.release(lease)?;
        }
        Ok(reports)
    }

    /// One lease for everything that is staged, if anything is.
    fn lease_for(
        &mut self,
        calls: &[Collective<'_>],
        routes: &[Route],
        site: Site<'_>,
    ) -> Result<Result<Option<Lease>, Reason>> {
        let staged = calls.iter().zip(routes).filter_map(|(call, route)| {
            let Route::Stage { sides, .. } = *route else {
                return None;
            };
            Some(staged::scratch_bytes(call, sides, self.world_size))
        });
        let bytes = staged::together(staged)?;
        if bytes == 0 {
            return Ok(Ok(None));
        }
        Ok(self.acquire(bytes, site)?.map(Some))
    }
}

/// Refuses a group in which one operation writes what another reads or writes: members run in no
/// particular order.
fn check_disjoint(calls: &[Collective<'_>]) -> Result<()> {
    for (index, left) in calls.iter().enumerate() {
        for right in &calls[index + 1..] {
            if left.recv.overlaps(right.recv)
                || left.recv.overlaps(right.send)
                || left.send.overlaps(right.recv)
            {
                return Err(Misuse::Overlap.into());
            }
        }
    }
    Ok(())
}
