//! Collectives: what ranks ask for, and what comes of it when all have come.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arithmetic;
use crate::calls::{Call, Op};
use crate::world::{Handle, World};

/// A call in a queue.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) call: Call,
    key: Key,
    /// Which of those that meet it is.
    member: c_int,
    came: bool,
    done: Arc<AtomicBool>,
}

/// Which calls meet: the communicator, and there the how manieth collective or message between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Collective(u64, u64),
    Message(u64, c_int, c_int, u64),
}

/// A call whose stream has come to it.
#[derive(Debug)]
pub(crate) struct Arrival {
    call: Call,
    rank: c_int,
    done: Arc<AtomicBool>,
}

impl Issued {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

impl World {
    /// Gives a call its number: from now on it is one of those that the ranks make in order.
    pub(crate) fn issue(&mut self, call: Call) -> Issued {
        let done = Arc::default();
        let Some(comm) = self.nccl.communicators.get_mut(&call.comm) else {
            let key = Key::Collective(0, 0);
            return Issued {
                call,
                key,
                member: 0,
                came: false,
                done,
            };
        };
        let (key, member) = match call.op {
            Op::Send | Op::Recv => {
                let (pair, member) = match call.op {
                    Op::Send => ((comm.rank, call.root), 0),
                    _ => ((call.root, comm.rank), 1),
                };
                // A rank that sends to itself counts both halves.
                let count = comm.messages.entry((member, pair.0, pair.1)).or_default();
                *count += 1;
                (Key::Message(comm.id, pair.0, pair.1, *count), member)
            }
            _ => {
                comm.collectives += 1;
                (Key::Collective(comm.id, comm.collectives), comm.rank)
            }
        };
        Issued {
            call,
            key,
            member,
            came: false,
            done,
        }
    }

    /// A stream has come to a call; what all have come to happens now.
    pub(crate) fn arrive(&mut self, issued: &mut Issued) {
        if issued.is_done() {
            return;
        }
        let Some(comm) = self.nccl.communicators.get(&issued.call.comm) else {
            // Aborted, so nothing happens.
            issued.done.store(true, Ordering::Relaxed);
            return;
        };
        if std::mem::replace(&mut issued.came, true) {
            return;
        }
        let (rank, ranks) = (comm.rank, comm.ranks);
        let (call, done) = (issued.call.clone(), Arc::clone(&issued.done));
        let meeting = self.nccl.arrivals.entry(issued.key).or_default();
        meeting.insert(issued.member, Arrival { call, rank, done });
        let wanted = match issued.key {
            Key::Collective(..) => ranks,
            Key::Message(..) => 2,
        };
        if meeting.len() == wanted
            && let Some(all) = self.nccl.arrivals.remove(&issued.key)
        {
            let all: Vec<_> = all.into_values().collect();
            self.happen(&all);
            for arrival in all {
                arrival.done.store(true, Ordering::Relaxed);
            }
        }
    }

    /// What calls that never happen leave: those of a communicator that has ended.
    pub(crate) fn abandon(&mut self, comm: Handle) {
        for meeting in self.nccl.arrivals.values_mut() {
            meeting.retain(|_, arrival| {
                let stays = arrival.call.comm != comm;
                arrival.done.store(!stays, Ordering::Relaxed);
                stays
            });
        }
        self.nccl.arrivals.retain(|_, meeting| !meeting.is_empty());
    }

    /// Whether calls on a communicator have not happened.
    pub(crate) fn has_work(&self, comm: Handle) -> bool {
        let mut arrivals = self.nccl.arrivals.values().flat_map(BTreeMap::values);
        arrivals.any(|arrival| arrival.call.comm == comm)
    }

    /// The ranges that a call touches.
    pub(crate) fn touched_by(&self, call: &Call) -> [(usize, usize); 2] {
        match self.nccl.communicators.get(&call.comm) {
            Some(comm) => call.ranges(comm.rank, comm.ranks),
            None => [(0, 0); 2],
        }
    }

    fn happen(&mut self, all: &[Arrival]) {
        let Some((first, others)) = all.split_first() else {
            return;
        };
        let common = first.call.common();
        if others.iter().any(|other| other.call.common() != common) {
            self.wrong
                .push(format!("ranks that call differently: {all:?}"));
            return;
        }
        let paths: Vec<_> = all.iter().map(|one| self.path(&one.call)).collect();
        if paths.iter().any(|path| *path != paths[0]) {
            let op = first.call.op;
            self.wrong
                .push(format!("ranks take different paths in {op:?}: {paths:?}"));
        }
        let mut read = Vec::new();
        let mut written = Vec::new();
        for arrival in all {
            let [(send, input), (recv, output)] = arrival.call.ranges(arrival.rank, all.len());
            let (Some(from), Some(to)) = (self.bytes_at(send, input), self.bytes_at(recv, output))
            else {
                return;
            };
            // What is read is not what is written meanwhile.
            read.push(from.to_vec());
            written.push(to);
        }
        let inputs: Vec<_> = read.iter().map(Vec::as_slice).collect();
        let output = output(&first.call, &inputs);
        let part = first.call.bytes();
        for (rank, to) in written.into_iter().enumerate() {
            let from = match first.call.op {
                Op::ReduceScatter => &output[rank * part..][..part],
                _ => &output[..],
            };
            if !to.is_empty() {
                to.copy_from_slice(from);
            }
        }
    }
}

/// What the ranks that write are given, or parts of.
fn output(call: &Call, inputs: &[&[u8]]) -> Vec<u8> {
    match call.op {
        Op::AllReduce | Op::Reduce | Op::ReduceScatter => {
            arithmetic::fold(call.dtype, call.reduction, inputs)
        }
        // Of the others only those that read give something.
        Op::Broadcast | Op::AllGather | Op::Send | Op::Recv => inputs.concat(),
    }
}
