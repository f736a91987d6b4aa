//! Several operations as one.

use super::Collectives;
use super::operation::Operands;
use super::route::{self, Route, Way};
use super::run::Scratch;
use super::staged::{self, aligned};
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::order;
use crate::path::{OpReport, Reason};
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::submission::{Submission, check_disjoint, check_stream};
use crate::tensor::Tensor;

/// Operations that are enqueued together, so that messages inside may meet in any order.
///
/// Dropping one without having returned it enqueues nothing.
#[derive(Debug)]
pub struct Group<'c> {
    rank: Rank,
    calls: Vec<Collective<'c>>,
    owners: Vec<Memory>,
    /// The operation that could not be added.
    refused: Option<Op<'c>>,
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
        let operands = Operands::of(send, recv).inspect_err(|_| self.refused = Some(op))?;
        self.calls.push(operands.call(op, counts));
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
            refused: None,
        };
        let decided = body(&mut group).and_then(|()| self.decide_group(&mut group, stream));
        match decided {
            Ok(decided) => self
                .run_group(group, decided)
                .map_err(|error| self.with_context(error, "group")),
            Err(error) => Err(self.refuse_group(group, error)),
        }
    }

    #[cold]
    fn refuse_group(&mut self, group: Group<'_>, error: Error) -> Error {
        let refused = group
            .refused
            .map(|op| Operands::NONE.call(op, Counts::Even(0)));
        let calls: Vec<_> = group.calls.into_iter().chain(refused).collect();
        self.refuse(&calls, "group", error)
    }

    /// Checks all calls and chooses their ways.
    fn decide_group<'s>(&self, group: &mut Group<'_>, stream: &'s Stream) -> Result<Decided<'s>> {
        check_stream(stream, self.device_id)?;
        for call in &mut group.calls {
            if self.look_up_addresses {
                *call = self.looked_up(call);
            }
            call.check(self.rank, self.world_size)?;
        }
        check_disjoint(&group.calls)?;
        let owners: Vec<_> = group.owners.iter().collect();
        order::check_device(self.device_id, &owners)?;
        let capture = self.device.capture_state(stream)?;
        let calls = group.calls.iter();
        let routes: Result<Vec<_>> = calls
            .map(|call| self.route(call, capture.is_some()))
            .collect();
        let routes = routes?;
        Ok(Decided {
            on: Submission {
                kernel: self.kernel,
                ..Submission::on(stream, capture)
            },
            bytes: scratch_of(&routes)?,
            routes,
        })
    }

    fn run_group(&mut self, mut group: Group<'_>, decided: Decided<'_>) -> Result<Vec<OpReport>> {
        let Decided { on, routes, bytes } = decided;
        let scratch = match bytes {
            0 => Scratch::Ordinary(Reason::StagingOff),
            bytes => self.acquire(bytes, &on)?,
        };
        let mut offset = 0;
        let (mut copies_in, mut copies_out) = (Vec::new(), Vec::new());
        let mut reports = Vec::with_capacity(routes.len());
        for (call, route) in group.calls.iter_mut().zip(routes) {
            let way = match (route, &scratch) {
                (Route::AsIs(way), _) => way,
                (Route::Stage { .. }, Scratch::Ordinary(reason)) => {
                    let way = Way::fallback(*reason);
                    route::permit(call, way, self.fallback)?;
                    way
                }
                (
                    Route::Stage {
                        sides,
                        kernel,
                        bytes,
                    },
                    Scratch::Lease(lease),
                ) => {
                    let part = lease.operand().slice(offset, bytes)?;
                    offset += aligned(bytes)?;
                    reports.push(OpReport::staged(call, lease, kernel));
                    let copies;
                    (*call, copies) = staged::stage(call, sides, part, self.world_size)?;
                    copies_in.extend(copies.into);
                    copies_out.extend(copies.out);
                    continue;
                }
            };
            reports.push(OpReport::unstaged(call, way));
        }
        if group.calls.is_empty() {
            return Ok(reports);
        }
        let lease = match scratch {
            Scratch::Lease(lease) => Some(lease),
            Scratch::Ordinary(_) => None,
        };
        let submission = Submission {
            copies_in: &copies_in,
            calls: &group.calls,
            copies_out: &copies_out,
            ..on
        };
        let mut owners: Vec<_> = group.owners.iter().collect();
        self.submit(&submission, lease.as_ref(), &mut owners)?;
        if let Some(lease) = lease {
            self.scratch.release(lease)?;
        }
        Ok(reports)
    }
}

/// What is known of a group before another rank hears of it.
struct Decided<'s> {
    on: Submission<'s>,
    routes: Vec<Route>,
    /// Of scratch for all that is staged.
    bytes: usize,
}

/// Bytes of one lease for everything that is staged.
fn scratch_of(routes: &[Route]) -> Result<usize> {
    staged::together(routes.iter().filter_map(|route| match *route {
        Route::Stage { bytes, .. } => Some(Ok(bytes)),
        Route::AsIs(_) => None,
    }))
}
