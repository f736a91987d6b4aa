//! The toy's communicator: every operation is one exchange of bytes over the control plane.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::addr::{Addr, Operand, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::{
    Abort, AbortHandle, Capabilities, CommInfo, Communicator, Deferred,
};
use collectives_core::device::Device;
use collectives_core::disorder;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::path::PathTable;
use collectives_core::rank::{CommId, Rank};
use collectives_core::reduce::ReduceOp;
use collectives_core::round::{Call, Rounds};
use collectives_core::split;
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

use crate::device::ToyDevice;
use crate::reduce::reduce;

/// One rank's end of a communicator.
#[derive(Debug)]
pub(crate) struct ToyCommunicator {
    info: CommInfo,
    capabilities: Capabilities,
    device: Arc<dyn Device>,
    toy: Arc<ToyDevice>,
    bootstrap: Arc<dyn Bootstrap>,
    deadline: Duration,
    /// Exchanges so far, equal on all ranks.
    rounds: Rounds,
    /// The control plane with each peer, and the messages exchanged there so far.
    pairs: BTreeMap<Rank, (Arc<dyn Bootstrap>, u64)>,
    closed: bool,
}

impl ToyCommunicator {
    /// Joins the ranks of the control plane; waits for all of them.
    pub(crate) fn connect(
        bootstrap: Arc<dyn Bootstrap>,
        toy: Arc<ToyDevice>,
        deadline: Duration,
    ) -> Result<Self> {
        bootstrap.all_gather("toy/connect", &[], deadline)?;
        let device: Arc<dyn Device> = Arc::<ToyDevice>::clone(&toy);
        Ok(Self {
            info: CommInfo {
                id: CommId::fresh(),
                rank: bootstrap.rank(),
                world_size: bootstrap.world_size(),
                backend: "toy",
                granule: 4096,
                overhead: 0,
                token: Memory::token(device.id(), || {}),
            },
            capabilities: Capabilities {
                symmetric: Err(Unsupported::SymmetricMemory("the toy has none".to_owned())),
                paths: PathTable::default(),
                drains: true,
                compares_calls: true,
                forces_kernels: false,
                world: 1..=usize::MAX,
            },
            device,
            toy,
            bootstrap,
            deadline,
            rounds: Rounds::new("toy"),
            pairs: BTreeMap::new(),
            closed: false,
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed));
        }
        health(&*self.bootstrap)
    }

    /// Gives every rank the bytes of every rank, if all make this call.
    fn exchange(&self, call: Call<'_>, mine: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>> {
        self.check_open()?;
        let all = self.rounds.run(&*self.bootstrap, call, mine, deadline);
        all.inspect_err(|error| self.note(error))
    }

    /// After an error that poisons, nothing works on any rank.
    fn note(&self, error: &Error) {
        if error.poisons() {
            self.bootstrap.publish_failure(&error.kind().to_string());
        }
    }

    /// One collective: what all ranks say of it is compared, then each works out its own result.
    ///
    /// # Safety
    ///
    /// The operands are valid, as for `enqueue`.
    unsafe fn collective(&mut self, call: &Collective<'_>) -> Result<()> {
        let record = describe(call, self.info.world_size);
        let words = record.call().unwrap_or_default();
        let header = record.encode();
        let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
        let mut mine = length.to_le_bytes().to_vec();
        mine.extend(header);
        // SAFETY: By the caller.
        mine.extend(unsafe { bytes_of(call.send) });
        let name = Call::named("operation").in_words(&words);
        let all = self.exchange(name, &mine, self.deadline)?;
        let parts: Vec<_> = all.iter().map(|bytes| take_apart(bytes)).collect();
        let mut records = Vec::new();
        let mut inputs = Vec::new();
        for part in parts {
            let (record, input) = part?;
            records.push(record);
            inputs.push(input);
        }
        Record::check_equal(&records)?;
        let result = result_of(call, self.info.rank, &records, &inputs)?;
        if call.recv.bytes > 0 {
            // SAFETY: By the caller, and the result has the length that `check` found.
            unsafe { fill(call.recv, &result) };
        }
        Ok(())
    }

    /// Gives a peer some bytes and gets its own, with no other rank.
    fn swap(&mut self, peer: Rank, mine: &[u8]) -> Result<Vec<u8>> {
        let me = self.info.rank;
        let (pair, round) = match self.pairs.entry(peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let members = [me.min(peer), me.max(peer)];
                let name = format!("toy/pair/{}-{}", members[0], members[1]);
                new.insert((self.bootstrap.subgroup(&name, &members)?, 0))
            }
        };
        *round += 1;
        let mut both = pair.all_gather(&format!("toy/{round}"), mine, self.deadline)?;
        Ok(both.swap_remove(usize::from(me < peer)))
    }

    /// Messages of one group: one exchange with every peer, in an order that cannot form a ring.
    ///
    /// # Safety
    ///
    /// The operands are valid, as for `enqueue`.
    unsafe fn messages(&mut self, calls: &[&Collective<'_>]) -> Result<()> {
        let me = self.info.rank;
        let mut peers: Vec<Rank> = calls.iter().filter_map(|call| call.root()).collect();
        peers.sort_unstable_by_key(|&peer| (me.min(peer), me.max(peer)));
        peers.dedup();
        for peer in peers {
            let with_peer = || calls.iter().filter(|call| call.root() == Some(peer));
            let mut mine = Vec::new();
            for call in with_peer().filter(|call| matches!(call.op, Op::Send { .. })) {
                // SAFETY: By the caller.
                mine.extend(unsafe { bytes_of(call.send) });
            }
            let theirs = match peer == me {
                true => mine,
                false => self.swap(peer, &mine)?,
            };
            let mut theirs = theirs.as_slice();
            for call in with_peer().filter(|call| matches!(call.op, Op::Recv { .. })) {
                let Some((message, rest)) = theirs.split_at_checked(call.recv.bytes) else {
                    let text = "a message is shorter than its receiver expects";
                    return Err(Misuse::Other(text.to_owned()).into());
                };
                // SAFETY: By the caller.
                unsafe { fill(call.recv, message) };
                theirs = rest;
            }
        }
        Ok(())
    }
}

/// What must be equal on all ranks, and, for an all-to-all, what this rank sends to each.
fn describe(call: &Collective<'_>, world_size: usize) -> Record {
    let root = call.root().map_or(0, |root| u64::from(root.0) + 1);
    let reduction = call.reduction().map_or("none", ReduceOp::name);
    let mut record = Record::new()
        .named(Field::Operation, call.kind().name())
        .named(Field::DType, call.dtype.name())
        .named(Field::Reduction, reduction)
        .field(Field::Root, root);
    match (call.op, call.counts) {
        (Op::AllToAll { .. }, counts) => {
            for rank in 0..world_size {
                record = record.fact(counts.of(Rank::new(rank)) as u64);
            }
        }
        (_, Counts::Uneven(counts)) => {
            for &count in counts {
                record = record.field(Field::Counts, count as u64);
            }
        }
        (_, counts) => record = record.field(Field::Count, counts.of(Rank(0)) as u64),
    }
    record
}

fn take_apart(bytes: &[u8]) -> Result<(Record, &[u8])> {
    let garbled = || Error::from(Misuse::Other("a garbled message".to_owned()));
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(garbled)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (header, input) = rest.split_at_checked(length).ok_or_else(garbled)?;
    Ok((Record::decode(header)?, input))
}

/// What this rank gets.
fn result_of(
    call: &Collective<'_>,
    me: Rank,
    records: &[Record],
    inputs: &[&[u8]],
) -> Result<Vec<u8>> {
    let size = call.dtype.size();
    let mine = |whole: &[u8]| {
        let start = call.counts.before(me) * size;
        whole[start..start + call.counts.of(me) * size].to_vec()
    };
    Ok(match call.op {
        Op::AllReduce(op) | Op::Reduce { op, .. } => reduce(call.dtype, op, inputs)?,
        Op::ReduceScatter(op) => mine(&reduce(call.dtype, op, inputs)?),
        Op::AllGather | Op::Gather { .. } => inputs.concat(),
        Op::Broadcast { root } => inputs[root.index()].to_vec(),
        Op::Scatter { root } => mine(inputs[root.index()]),
        Op::AllToAll { .. } => {
            let mut result = Vec::new();
            for (record, input) in records.iter().zip(inputs) {
                let count = |fact: &u64| usize::try_from(*fact).unwrap_or(0) * size;
                let (before, rest) = record.facts().split_at(me.index());
                let start: usize = before.iter().map(count).sum();
                let length = rest.first().map_or(0, count);
                result.extend_from_slice(&input[start..start + length]);
            }
            result
        }
        _ => Vec::new(),
    })
}

/// # Safety
///
/// The operand is valid for reads.
unsafe fn bytes_of(operand: Operand) -> Vec<u8> {
    if operand.bytes == 0 {
        return Vec::new();
    }
    // SAFETY: By the caller.
    unsafe { std::slice::from_raw_parts(operand.addr.as_ptr::<u8>(), operand.bytes) }.to_vec()
}

/// # Safety
///
/// The operand is valid for writes.
unsafe fn fill(operand: Operand, bytes: &[u8]) {
    let length = bytes.len().min(operand.bytes);
    // SAFETY: By the caller; `bytes` is a copy of its own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), operand.addr.as_ptr(), length) };
}

/// The first failure that a rank published.
fn health(bootstrap: &dyn Bootstrap) -> Result<()> {
    match bootstrap.failure() {
        None => Ok(()),
        Some((rank, cause)) if rank == bootstrap.rank() => {
            let heard = disorder::heard(rank, &cause);
            Err(match heard.kind() {
                ErrorKind::PeerFailed { .. } => Error::new(ErrorKind::Aborted { cause }),
                _ => heard,
            })
        }
        Some((rank, cause)) => Err(disorder::heard(rank, &cause)),
    }
}

impl Communicator for ToyCommunicator {
    fn info(&self) -> &CommInfo {
        &self.info
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        self.check_open()?;
        let me = self.info.rank;
        let (messages, collectives): (Vec<&Collective<'_>>, Vec<_>) = submission
            .calls
            .iter()
            .partition(|call| call.kind().is_point_to_point());
        let own = messages.iter().filter(|call| call.root() == Some(me));
        let sends = |call: &&&Collective<'_>| matches!(call.op, Op::Send { .. });
        if own.clone().filter(sends).count() * 2 != own.count() {
            return Err(Misuse::SelfMessage { rank: me }.into());
        }
        let device = Arc::clone(&self.device);
        let run = || {
            for call in collectives {
                // SAFETY: By the caller ("The operands").
                unsafe { self.collective(call) }?;
            }
            // SAFETY: As above.
            unsafe { self.messages(&messages) }
        };
        // SAFETY: By the caller ("The copies").
        unsafe { submission.copy_around(&*device, run) }
    }

    fn refused(&mut self, _calls: &[Collective<'_>], error: Error) -> Error {
        error
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        let words = mine.call();
        let call = Call::named("agree").in_words(words.as_deref().unwrap_or("agree"));
        let all = self.exchange(call, &mine.encode(), deadline)?;
        all.iter().map(|bytes| Record::decode(bytes)).collect()
    }

    fn window_of(&self, _addr: Addr, _bytes: usize) -> Option<WindowSlice> {
        None
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        None
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let records = self.agree(&split::record(color, key), self.deadline)?;
        let Some(color) = color else { return Ok(None) };
        let members = split::members(&records, color);
        let name = format!("toy/split/{}/{color}", self.rounds.made());
        let bootstrap = self.bootstrap.subgroup(&name, &members)?;
        let child = Self::connect(bootstrap, Arc::clone(&self.toy), self.deadline)?;
        Ok(Some(Box::new(child)))
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::new(ToyAbort(Arc::clone(&self.bootstrap))))
    }

    fn shutdown(&mut self) -> Result<Deferred> {
        if self.closed {
            return Ok(Deferred::default());
        }
        // A round, so that ranks which wait for this one in another are told.
        let ended = self.exchange(Call::named("shutdown"), &[], self.deadline);
        self.closed = true;
        ended.map(|_| Deferred::default())
    }
}

impl Drop for ToyCommunicator {
    fn drop(&mut self) {
        if !self.closed {
            self.bootstrap.publish_failure(match thread::panicking() {
                true => "it panicked",
                false => "it dropped the communicator without shutting it down",
            });
        }
    }
}

#[derive(Debug)]
struct ToyAbort(Arc<dyn Bootstrap>);

impl Abort for ToyAbort {
    fn abort(&self, cause: &str) {
        self.0.publish_failure(cause);
    }

    fn health(&self) -> Result<()> {
        health(&*self.0)
    }
}
