//! Generations of an arena: the same bytes at more and more addresses.
//!
//! A lease of one generation and a replay on another use the same bytes, so order and claims belong
//! to the bytes and pass from a generation to the next: the fence, the streams of the last uses, and
//! a token that every graph owns which captured any of them. Retirement belongs to the addresses: a
//! graph keeps the generation that it captured, and no other.

use std::sync::Arc;

use collectives_core::addr::WindowId;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Refusal, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::scratch::SlotId;
use collectives_core::stream::Fence;

use crate::budget::Charge;
use crate::pool::round::{Step, Subject};
use crate::pool::slot::Slot;
use crate::pool::{Growing, Pool};
use crate::verdict::How;

/// The generation that a new one maps again.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) id: SlotId,
    pub(super) window: WindowId,
    pub(super) mapped: usize,
    pub(super) fence: Fence,
    pub(super) charges: Vec<Arc<Charge>>,
}

impl Slot {
    /// Makes the slot the first generation of an arena.
    pub(super) fn begin_arena(&mut self) {
        self.arena = Some(self.id);
        self.body = Some(Memory::token(self.memory.device(), || {}));
    }

    /// Makes the slot the newest generation of the arena of `other`, whose order and claims it
    /// takes over. Both have the same fence. No capture goes on then, so a capture that uses this
    /// generation is another one than those that used the one before, and has yet to own it.
    pub(super) fn inherit(&mut self, other: &mut Self) {
        self.arena = other.arena;
        self.body = other.body.take();
        self.claimed = other.claimed;
        // The other one is waited for when it retires.
        self.last_user.clone_from(&other.last_user);
        other.claimed = other.captured;
    }
}

impl Pool {
    /// The slot whose bytes a new one maps again.
    pub(super) fn base(&self, growing: &Growing) -> Result<Option<Base>> {
        let How::Extending(Some(index)) = growing.how else {
            return Ok(None);
        };
        let slots = &self.table.domains()[growing.domain];
        match slots.live().get(index) {
            Some(slot) if slot.arena.is_some() => Ok(Some(Base {
                id: slot.id,
                window: slot.window,
                mapped: slot.mapped,
                fence: slot.fence().clone(),
                charges: slot.charges.clone(),
            })),
            _ => {
                let policy = self.policy.name();
                tracing::error!(policy, index, "the policy extends what is no arena");
                let (bytes, why) = (growing.bytes, Refusal::Policy);
                Err(Error::new(ErrorKind::Refused { bytes, why }))
            }
        }
    }

    /// Makes a slot that was just registered a generation: of the arena of `base`, which retires,
    /// or the first of its own.
    pub(super) fn join_arena(
        &mut self,
        domain: usize,
        mut slot: Slot,
        base: Option<&Base>,
    ) -> usize {
        match base.and_then(|base| self.table.supersede(domain, base.id)) {
            Some(older) => slot.inherit(older),
            None => slot.begin_arena(),
        }
        self.table.at(domain).push(slot)
    }

    /// Asks once how many bytes of addresses windows may take, which ranks may answer differently:
    /// the least counts, and where one cannot extend windows none does.
    pub(super) fn learn_addresses(&mut self, comm: &mut dyn Communicator) -> Result<()> {
        if self.addresses.is_none() {
            let own = match comm.symmetric() {
                Some(symmetric) => symmetric.extensible(),
                None => Err(Error::new(ErrorKind::Closed)),
            };
            let facts = [
                own.is_err().into(),
                own.as_ref().map_or(0, |&own| own as u64),
            ];
            let records = self.round(comm, Step::Addresses, Subject::default(), &facts)?;
            let told = |fact: usize| {
                let records = records.iter();
                records.map(move |record| record.facts().get(fact).copied())
            };
            let unable = told(0).position(|unable| unable != Some(0));
            let least = told(1).flatten().min().unwrap_or(0);
            if let Err(error) = own {
                tracing::warn!(%error, "scratch cannot grow by mapping memory again");
            }
            self.addresses = Some(match unable {
                None => Ok(usize::try_from(least).unwrap_or(usize::MAX)),
                Some(rank) => {
                    let text = format!("rank {rank} says that it cannot");
                    Err(Unsupported::Aliasing(text))
                }
            });
        }
        match &self.addresses {
            Some(Err(why)) => Err(Error::unsupported(why.clone())),
            _ => Ok(()),
        }
    }

    /// Bytes of addresses that windows may take, once that was asked and where they can be extended.
    pub(super) fn most_addresses(&self) -> Option<usize> {
        self.addresses.clone().and_then(Result::ok)
    }

    /// Whether windows have addresses for `mapped` bytes more once `going` are gone.
    pub(super) fn check_addresses(
        &self,
        growing: &Growing,
        going: &[SlotId],
        mapped: usize,
    ) -> Result<()> {
        let (Some(Ok(limit)), How::Extending(_)) = (&self.addresses, growing.how) else {
            return Ok(());
        };
        let staying = self.table.iter().filter(|slot| !going.contains(&slot.id));
        let staying = staying.map(|slot| slot.mapped);
        let addresses = staying.fold(mapped, usize::saturating_add);
        if addresses <= *limit {
            return Ok(());
        }
        let (bytes, limit) = (growing.bytes, *limit);
        let why = Refusal::OverAddresses { addresses, limit };
        Err(Error::new(ErrorKind::Refused { bytes, why }))
    }
}
