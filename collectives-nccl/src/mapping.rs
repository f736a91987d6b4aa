//! What each operation becomes in NCCL.
//!
//! | operation | NCCL |
//! |---|---|
//! | all-reduce, broadcast, reduce, send, recv | the call of that name |
//! | reduce-scatter, all-gather with equal parts | the call of that name |
//! | reduce-scatter with unequal parts | a group of one reduce for each rank that receives |
//! | all-gather with unequal parts | a group of one broadcast for each rank that contributes |
//! | all-to-all, gather, scatter | a group of sends and receives |
//! | barrier | an all-reduce of one word of the communicator's own |
//!
//! Groups of reduces, broadcasts and messages take the ordinary path; no symmetric kernel serves
//! them. Parts without elements are left out, on all ranks alike.

use collectives_core::addr::Addr;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::{Misuse, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;

/// One call of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    AllReduce {
        send: Addr,
        recv: Addr,
        count: usize,
    },
    ReduceScatter {
        send: Addr,
        recv: Addr,
        count: usize,
    },
    AllGather {
        send: Addr,
        recv: Addr,
        count: usize,
    },
    Broadcast {
        send: Addr,
        recv: Addr,
        count: usize,
        root: Rank,
    },
    Reduce {
        send: Addr,
        recv: Addr,
        count: usize,
        root: Rank,
    },
    Send {
        send: Addr,
        count: usize,
        to: Rank,
    },
    Recv {
        recv: Addr,
        count: usize,
        from: Rank,
    },
}

/// Whether an operation is one call, so that it needs no group of its own.
#[inline(always)]
pub(crate) fn is_single(call: &Collective<'_>) -> bool {
    match call.op {
        Op::AllReduce(_)
        | Op::Broadcast { .. }
        | Op::Reduce { .. }
        | Op::Send { .. }
        | Op::Recv { .. }
        | Op::Barrier => true,
        Op::ReduceScatter(_) | Op::AllGather => matches!(call.counts, Counts::Even(_)),
        _ => false,
    }
}

/// The one call that an operation [is](is_single); a barrier reduces the communicator's own word.
#[inline(always)]
pub(crate) fn single(call: &Collective<'_>, rank: Rank, barrier: &Memory) -> Option<Step> {
    let (send, recv) = (call.send.addr, call.recv.addr);
    let count = call.counts.of(rank);
    let step = match call.op {
        _ if !is_single(call) => return None,
        Op::AllReduce(_) => Step::AllReduce { send, recv, count },
        Op::ReduceScatter(_) => Step::ReduceScatter { send, recv, count },
        Op::AllGather => Step::AllGather { send, recv, count },
        Op::Broadcast { root } => Step::Broadcast {
            send: if root == rank { send } else { recv },
            recv,
            count,
            root,
        },
        Op::Reduce { root, .. } => Step::Reduce {
            send,
            recv: if root == rank { recv } else { send },
            count,
            root,
        },
        Op::Send { to } => Step::Send { send, count, to },
        Op::Recv { from } => Step::Recv { recv, count, from },
        Op::Barrier => Step::AllReduce {
            send: barrier.addr(),
            recv: barrier.addr(),
            count: 1,
        },
        _ => return None,
    };
    Some(step)
}

/// Gives `each` the calls of an operation that was checked, as `rank` of `world_size` makes them.
pub(crate) fn steps(
    call: &Collective<'_>,
    rank: Rank,
    world_size: usize,
    barrier: &Memory,
    each: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    let (send, recv) = (call.send.addr, call.recv.addr);
    let count = call.counts.of(rank);
    let size = call.dtype.size();
    let ranks = || (0..world_size).map(Rank::new);
    let part = |base: Addr, counts: Counts<'_>, of: Rank| base.offset(counts.before(of) * size);
    if let Some(step) = single(call, rank, barrier) {
        return each(step);
    }
    match call.op {
        Op::ReduceScatter(_) => ranks().try_for_each(|root| {
            let count = call.counts.of(root);
            let send = part(send, call.counts, root);
            // Only the root writes, so the others may name anything.
            let recv = if root == rank { recv } else { send };
            skip_empty(
                Step::Reduce {
                    send,
                    recv,
                    count,
                    root,
                },
                count,
                each,
            )
        }),
        Op::AllGather => ranks().try_for_each(|root| {
            let count = call.counts.of(root);
            let recv = part(recv, call.counts, root);
            // Only the root reads.
            let send = if root == rank { send } else { recv };
            skip_empty(
                Step::Broadcast {
                    send,
                    recv,
                    count,
                    root,
                },
                count,
                each,
            )
        }),
        Op::AllToAll { recv_counts } => ranks().try_for_each(|peer| {
            let to = part(send, call.counts, peer);
            let count = call.counts.of(peer);
            skip_empty(
                Step::Send {
                    send: to,
                    count,
                    to: peer,
                },
                count,
                each,
            )?;
            let from = part(recv, recv_counts, peer);
            let count = recv_counts.of(peer);
            skip_empty(
                Step::Recv {
                    recv: from,
                    count,
                    from: peer,
                },
                count,
                each,
            )
        }),
        Op::Gather { root } if root != rank => {
            let to = root;
            skip_empty(Step::Send { send, count, to }, count, each)
        }
        Op::Gather { .. } => ranks().try_for_each(|from| {
            let count = call.counts.of(from);
            let recv = part(recv, call.counts, from);
            match from == rank {
                true => own_part(send, recv, count, rank, each),
                false => skip_empty(Step::Recv { recv, count, from }, count, each),
            }
        }),
        Op::Scatter { root } if root != rank => {
            let from = root;
            skip_empty(Step::Recv { recv, count, from }, count, each)
        }
        Op::Scatter { .. } => ranks().try_for_each(|to| {
            let count = call.counts.of(to);
            let send = part(send, call.counts, to);
            match to == rank {
                true => own_part(send, recv, count, rank, each),
                false => skip_empty(Step::Send { send, count, to }, count, each),
            }
        }),
        _ => Err(Misuse::Other(format!("NCCL does not know {}", call.kind())).into()),
    }
}

/// What the root of a gather or scatter gives to itself, unless it is in its place already.
fn own_part(
    send: Addr,
    recv: Addr,
    count: usize,
    rank: Rank,
    each: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    if recv == send {
        return Ok(());
    }
    let (to, from) = (rank, rank);
    skip_empty(Step::Send { send, count, to }, count, each)?;
    skip_empty(Step::Recv { recv, count, from }, count, each)
}

fn skip_empty(step: Step, count: usize, each: &mut dyn FnMut(Step) -> Result<()>) -> Result<()> {
    match count {
        0 => Ok(()),
        _ => each(step),
    }
}

/// Refuses messages of a rank to itself that have no other half in the same group.
pub(crate) fn check_self_messages(calls: &[Collective<'_>], rank: Rank) -> Result<()> {
    let halves = |own: fn(&Op<'_>) -> Option<Rank>| {
        calls
            .iter()
            .filter(|call| own(&call.op) == Some(rank))
            .count()
    };
    let sends = halves(|op| match op {
        Op::Send { to } => Some(*to),
        _ => None,
    });
    let receives = halves(|op| match op {
        Op::Recv { from } => Some(*from),
        _ => None,
    });
    match sends == receives {
        true => Ok(()),
        false => Err(Misuse::SelfMessage { rank }.into()),
    }
}

#[cfg(test)]
mod tests {
    use collectives_core::addr::Operand;
    use collectives_core::dtype::DType;
    use collectives_core::rank::DeviceId;
    use collectives_core::reduce::ReduceOp;

    use super::*;

    fn at(value: usize) -> Addr {
        Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(value))
    }

    fn call<'a>(op: Op<'a>, send: usize, recv: usize, counts: Counts<'a>) -> Collective<'a> {
        Collective {
            op,
            dtype: DType::F32,
            send: Operand::new(at(send), 0),
            recv: Operand::new(at(recv), 0),
            counts,
        }
    }

    fn all(call: &Collective<'_>, rank: u32, world_size: usize) -> Vec<Step> {
        let mut found = Vec::new();
        let barrier = Memory::token(DeviceId::fresh(), || {});
        steps(call, Rank(rank), world_size, &barrier, &mut |step| {
            found.push(step);
            Ok(())
        })
        .unwrap();
        found
    }

    const COUNTS: Counts<'static> = Counts::Uneven(&[2, 0, 3]);

    #[test]
    fn an_uneven_reduce_scatter_is_a_reduce_for_each_receiver() {
        let op = Op::ReduceScatter(ReduceOp::Sum);
        let found = all(&call(op, 4096, 8192, COUNTS), 2, 3);
        let reduce = |send, recv, count, root| Step::Reduce {
            send: at(send),
            recv: at(recv),
            count,
            root: Rank(root),
        };
        assert_eq!(found, [reduce(4096, 4096, 2, 0), reduce(4104, 8192, 3, 2)]);
    }

    #[test]
    fn an_uneven_all_gather_is_a_broadcast_from_each_contributor() {
        let found = all(&call(Op::AllGather, 4096, 8192, COUNTS), 0, 3);
        let broadcast = |send, recv, count, root| Step::Broadcast {
            send: at(send),
            recv: at(recv),
            count,
            root: Rank(root),
        };
        let expected = [broadcast(4096, 8192, 2, 0), broadcast(8200, 8200, 3, 2)];
        assert_eq!(found, expected);
    }

    #[test]
    fn gather_and_scatter_meet_message_by_message() {
        let gather = Op::Gather { root: Rank(2) };
        let at_root = all(&call(gather, 4096, 8192, COUNTS), 2, 3);
        let receives = at_root
            .iter()
            .filter(|step| matches!(step, Step::Recv { .. }));
        assert_eq!(receives.count(), 2);
        assert!(all(&call(gather, 4096, 0, COUNTS), 1, 3).is_empty());
        let in_place = all(&call(gather, 8200, 8192, COUNTS), 2, 3);
        assert_eq!(in_place.len(), 1, "the root's own part is in its place");
        let scatter = Op::Scatter { root: Rank(0) };
        assert_eq!(all(&call(scatter, 4096, 8192, COUNTS), 0, 3).len(), 3);
    }

    #[test]
    fn all_to_all_sends_and_receives_what_has_elements() {
        let op = Op::AllToAll {
            recv_counts: Counts::Uneven(&[0, 5, 1]),
        };
        let found = all(&call(op, 4096, 8192, COUNTS), 1, 3);
        assert_eq!(found.len(), 4);
        let last = Step::Recv {
            recv: at(8192 + 20),
            count: 1,
            from: Rank(2),
        };
        assert_eq!(found[3], last);
    }

    #[test]
    fn a_message_to_oneself_needs_its_other_half() {
        let send = call(Op::Send { to: Rank(1) }, 4096, 0, Counts::Even(1));
        let recv = call(Op::Recv { from: Rank(1) }, 0, 8192, Counts::Even(1));
        assert!(check_self_messages(&[send], Rank(1)).is_err());
        assert!(check_self_messages(&[send, recv], Rank(1)).is_ok());
        assert!(check_self_messages(&[send], Rank(0)).is_ok());
    }

    #[test]
    fn a_barrier_uses_the_communicators_own_word() {
        let found = all(&Collective::BARRIER, 0, 2);
        let word = Step::AllReduce {
            send: Addr::NULL,
            recv: Addr::NULL,
            count: 1,
        };
        assert_eq!(found, [word]);
    }
}
