//! Agreement rounds of a pool, and what ranks tell each other in them.

use collectives_core::agreement::Record;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, Field, Result};
use collectives_core::rank::Rank;
use collectives_core::scratch::SlotId;

use crate::bytes::ByteSize;
use crate::pool::Pool;
use crate::pool::places::is_of_slots;

/// What a round is about; ranks that come together for different reasons are told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A miss of `acquire`: what is asked for, and which slots are still held.
    Miss,
    /// The beginning of `reserve`.
    Reserve,
    /// A miss of `reserve`.
    ReserveMiss,
    /// The bitmap of `trim`.
    Trim,
    /// The bitmap of `close`.
    Close,
    /// The last uses of what is freed have finished here.
    Settled,
    /// The outcome of an allocation.
    Outcome,
    /// How many addresses windows may take.
    Addresses,
    /// The bitmap of a rank that is out of memory.
    Pressure,
    /// Which slots streams that are gone have left.
    Gone,
    /// In which domain each slot lies, after a round in which ranks had them in different ones.
    Places,
    /// The first call, of this name, which needs nothing else of other ranks.
    Compare(&'static str),
}

impl Step {
    /// What ranks that do something else are told.
    const fn name(self) -> &'static str {
        match self {
            Self::Miss => "a miss of acquire",
            Self::Reserve => "reserve",
            Self::ReserveMiss => "a miss of reserve",
            Self::Trim => "trim",
            Self::Close => "close",
            Self::Settled => "freeing slots",
            Self::Outcome => "allocating a slot",
            Self::Addresses => "counting addresses",
            Self::Pressure => "giving up idle slots",
            Self::Gone => "taking slots back from streams",
            Self::Places => "comparing domains",
            Self::Compare(call) => call,
        }
    }
}

/// The numbers that must be equal on all ranks, apart from configuration and slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Subject {
    pub(super) domain: u64,
    pub(super) count: usize,
    pub(super) bytes: u64,
    pub(super) capacity: usize,
}

/// Slots that may be freed, and which of them this rank still holds.
#[derive(Debug)]
pub(super) struct Ballot {
    slots: Vec<SlotId>,
    held: Vec<u64>,
}

impl Pool {
    /// Exchanges one record, checks that its fields are equal, and returns all of them. Where slots
    /// differ, they are [the same](Self::reconcile) after the error.
    pub(super) fn round(
        &mut self,
        comm: &mut dyn Communicator,
        step: Step,
        subject: Subject,
        facts: &[u64],
    ) -> Result<Vec<Record>> {
        let mut record = Record::new().field(Field::Order, self.rounds);
        if self.rounds == 0 {
            // Nothing of it changes after that.
            record = self.with_configuration(record);
        }
        let slots = match step {
            Step::Places => self.table.contents(),
            _ => self.table.digest(),
        };
        record = record
            .named(Field::Operation, step.name())
            .field(Field::Slots, slots)
            .field(Field::Domain, subject.domain)
            .field(Field::Count, subject.count as u64)
            .field(Field::Bytes, subject.bytes)
            .field(Field::Capacity, subject.capacity as u64);
        for &fact in facts {
            record = record.fact(fact);
        }
        let records = comm.agree(&record, self.options.agree_deadline);
        let checked = records.and_then(|records| {
            Record::check_equal(&records)?;
            Ok(records)
        });
        // Counted on every rank alike: in a round that fails, some may have made another call.
        self.rounds += u64::from(checked.is_ok());
        self.ledger.agreed(checked.is_ok());
        if let Err(error) = &checked {
            self.remember(error);
            // All ranks come to this verdict, in the same step.
            if is_of_slots(error) && step != Step::Places {
                self.reconcile(comm)?;
            }
        }
        checked
    }

    /// Keeps the first error after which nothing may be relied on.
    pub(super) fn remember(&mut self, error: &Error) {
        if error.poisons() && self.poisoned.is_none() {
            self.poisoned = Some(error.to_string());
        }
    }

    /// Everything configured, a field a key, in words.
    fn with_configuration(&self, record: Record) -> Record {
        let home = self
            .home
            .map_or((0, 0), |home| (home.granule, home.overhead));
        let mut keys = vec![("policy", self.policy.name().to_owned())];
        keys.extend(self.policy.parameters());
        // What a third party's policy does not name.
        keys.push(("the policy's digest", self.policy.digest().to_string()));
        keys.extend(self.options.parameters());
        keys.push(("the granule", ByteSize::new(home.0).to_string()));
        keys.push(("the overhead", ByteSize::new(home.1).to_string()));
        keys.into_iter().fold(record, |record, (key, value)| {
            record.named(Field::Configuration, format!("{key} = {value}"))
        })
    }

    /// Has ranks compare how they were configured, in a call of this name, which came to this without a
    /// round, and is the first.
    pub(super) fn compare(
        &mut self,
        comm: &mut dyn Communicator,
        call: &'static str,
    ) -> Result<()> {
        if self.rounds > 0 {
            return Ok(());
        }
        self.round(comm, Step::Compare(call), Subject::default(), &[])
            .map(drop)
    }

    /// The ballot over `slots`, ascending and equal on all ranks. With `all_held` this rank lets
    /// none of them go.
    pub(super) fn ballot(&mut self, slots: Vec<SlotId>, all_held: bool) -> Ballot {
        let mut held: Vec<_> = match all_held {
            true => slots.clone(),
            false => {
                let held = self.table.iter_mut().filter_map(|slot| {
                    let asked = slots.binary_search(&slot.id).is_ok();
                    (asked && slot.is_held()).then_some(slot.id)
                });
                held.collect()
            }
        };
        held.sort_unstable();
        Ballot::new(slots, |slot| held.binary_search(&slot).is_ok())
    }

    /// Whether a capture that this pool knows of goes on, so that nothing may be registered,
    /// retired or allocated.
    pub(super) fn is_capturing(&mut self, comm: &dyn Communicator) -> bool {
        self.captures.any_goes_on(&**comm.device())
    }
}

impl Ballot {
    /// The ballot over `slots`, ascending and equal on all ranks, with what this rank says of each.
    pub(super) fn new(slots: Vec<SlotId>, is_held: impl Fn(SlotId) -> bool) -> Self {
        let mut held = vec![0; slots.len().div_ceil(64)];
        for (bit, &slot) in slots.iter().enumerate() {
            held[bit / 64] |= u64::from(is_held(slot)) << (bit % 64);
        }
        Self { slots, held }
    }

    /// This rank's votes, after its other facts.
    pub(super) fn facts(&self, first: u64) -> Vec<u64> {
        let mut facts = vec![first];
        facts.extend(&self.held);
        facts
    }

    /// The slots that this rank does not hold, ascending.
    pub(super) fn free_here(self) -> Vec<SlotId> {
        let facts = self.facts(0).into_iter();
        let own = facts.fold(Record::new(), Record::fact);
        self.free(&[own])
    }

    /// The slots that no rank holds, ascending.
    pub(super) fn free(self, records: &[Record]) -> Vec<SlotId> {
        let held = |bit: usize| {
            records.iter().any(|record| {
                // A vote that is missing keeps the slot.
                let word = record.facts().get(1 + bit / 64).copied();
                word.unwrap_or(u64::MAX) >> (bit % 64) & 1 == 1
            })
        };
        let slots = self.slots.into_iter().enumerate();
        slots
            .filter(|&(bit, _)| !held(bit))
            .map(|(_, slot)| slot)
            .collect()
    }
}

/// The first rank whose first fact is not zero.
pub(super) fn first_raised(records: &[Record]) -> Option<Rank> {
    let raised = |record: &Record| record.facts().first().is_none_or(|&fact| fact != 0);
    records.iter().position(raised).map(Rank::new)
}
