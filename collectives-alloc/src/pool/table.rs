//! Every slot of a pool: live ones by domain, and retired ones.

use collectives_core::error::Result;
use collectives_core::rank::CaptureId;
use collectives_core::scratch::{Domain, Lease, SlotId};
use collectives_core::stats::SlotStats;
use collectives_core::stream::StreamRef;

use crate::digest::Digest;
use crate::options::DomainMode;
use crate::policy::SlotView;
use crate::pool::slot::Slot;

/// The slots of one domain, oldest first, and what a policy sees of them. What a hit reads comes first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slots {
    live: Vec<Slot>,
    views: Vec<SlotView>,
    /// Equal on all ranks: domains are numbered in the order of their first use.
    pub(super) ordinal: u64,
    key: Domain,
    /// The stream whose domain it is.
    stream: Option<StreamRef>,
    /// The largest request the policy answered.
    pub(super) largest: usize,
    /// Requests the policy answered while all slots were free, and the slots it chose; as long as the
    /// slots are the same. Zero bytes mean an empty place.
    choices: [(usize, usize); CHOICES],
}

/// All slots. What a hit reads comes first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    /// The first one is [`Domain::Shared`]. It holds what `reserve` made, also in the other modes,
    /// where a domain that misses takes slots over from it.
    domains: Vec<Slots>,
    /// The domain and the index of the slot lent last.
    lent: (usize, usize),
    mode: DomainMode,
    /// Ascending by generation.
    retired: Vec<Slot>,
    domains_seen: u64,
    slots_seen: u64,
    /// Whether a domain took a slot over from another.
    pub(super) moved: bool,
}

/// A free slot that is large enough, and what changes when it is lent.
pub(super) struct Chosen<'t> {
    pub(super) slot: &'t mut Slot,
    view: &'t mut SlotView,
    lent: &'t mut (usize, usize),
    place: (usize, usize),
}

impl Chosen<'_> {
    /// Leases `bytes` bytes of the slot, which was ordered.
    #[inline(always)]
    pub(super) fn lease(self, bytes: usize) -> Result<Lease> {
        self.view.leased = true;
        *self.lent = self.place;
        self.slot.lease(bytes)
    }

    /// Ends the lease that the slot [lent](Slot::lent).
    #[inline(always)]
    pub(super) fn take_back(&mut self, lease: Lease) -> Result<()> {
        self.view.leased = false;
        self.slot.take_back(lease)
    }
}

/// The domain that holds what was reserved.
pub(super) const SHARED: usize = 0;

/// Choices remembered, each at the place its size hashes to.
const CHOICES: usize = 16;

/// Where the choice for a size is remembered: the upper bits of a multiplicative hash.
#[inline]
const fn place(bytes: usize) -> usize {
    bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - CHOICES.ilog2())
}

impl Slots {
    fn new(ordinal: u64, key: Domain, stream: Option<StreamRef>) -> Self {
        Self {
            ordinal,
            key,
            stream,
            live: Vec::new(),
            views: Vec::new(),
            largest: 0,
            choices: [(0, 0); CHOICES],
        }
    }

    /// Looks which leases ended since the last time; whether all did. Only the pool begins one, so a
    /// slot that was free still is.
    #[inline]
    pub(super) fn refresh(&mut self) -> bool {
        let mut all_free = true;
        for (view, slot) in self.views.iter_mut().zip(&self.live) {
            if view.leased {
                view.leased = slot.is_leased();
                all_free &= !view.leased;
            }
        }
        all_free
    }

    /// The slot that a policy chose for the same request when it saw the same slots, all free. It is
    /// a pure function of them, so it would choose it again.
    #[inline]
    pub(super) fn remembered(&self, bytes: usize) -> Option<usize> {
        let (known, index) = self.choices[place(bytes)];
        (known == bytes).then_some(index)
    }

    /// Remembers what the policy chose while all slots were free.
    pub(super) fn remember(&mut self, bytes: usize, index: usize) {
        self.choices[place(bytes)] = (bytes, index);
    }

    /// What a policy sees and may change; whoever changes it makes the pool forget
    /// the policy's choices.
    fn views_to_change(&mut self) -> &mut Vec<SlotView> {
        self.choices = [(0, 0); CHOICES];
        &mut self.views
    }

    /// What a policy sees, as of the last refresh.
    pub(super) fn views(&self) -> &[SlotView] {
        &self.views
    }

    pub(super) fn live(&self) -> &[Slot] {
        &self.live
    }

    /// Adds a slot, at its place by age; where that is.
    pub(super) fn push(&mut self, slot: Slot) -> usize {
        let index = self.live.partition_point(|other| other.id < slot.id);
        let view = SlotView {
            capacity: slot.capacity,
            leased: slot.is_leased(),
        };
        self.views_to_change().insert(index, view);
        self.live.insert(index, slot);
        index
    }

    /// Whether it is the domain of a stream that was dropped.
    pub(super) fn is_of_gone(&self) -> bool {
        self.stream.as_ref().is_some_and(StreamRef::is_gone)
    }

    fn remove(&mut self, index: usize) -> Slot {
        self.views_to_change().remove(index);
        self.live.remove(index)
    }

    /// The domain's name, the same on all ranks, which stream and capture identities are not.
    pub(super) fn label(&self) -> String {
        match self.key {
            Domain::Stream(_) => format!("stream #{}", self.ordinal),
            Domain::Graph(_) => format!("graph #{}", self.ordinal),
            shared => shared.to_string(),
        }
    }
}

impl Table {
    pub(super) fn new(mode: DomainMode) -> Self {
        Self {
            mode,
            domains: vec![Slots::new(0, Domain::Shared, None)],
            retired: Vec::new(),
            domains_seen: 1,
            slots_seen: 0,
            moved: false,
            lent: (SHARED, 0),
        }
    }

    /// The index of the domain of a use, which exists from then on.
    #[inline]
    pub(super) fn domain(&mut self, stream: &StreamRef, capture: Option<CaptureId>) -> usize {
        let key = match self.mode {
            DomainMode::Shared => return SHARED,
            DomainMode::Stream => Domain::Stream(stream.id()),
            DomainMode::Graph => match capture {
                Some(capture) => Domain::Graph(capture),
                None => return SHARED,
            },
        };
        if let Some(index) = self.domains.iter().rposition(|slots| slots.key == key) {
            return index;
        }
        self.open(key, stream)
    }

    #[cold]
    fn open(&mut self, key: Domain, stream: &StreamRef) -> usize {
        let stream = matches!(key, Domain::Stream(_)).then(|| stream.clone());
        self.domains
            .push(Slots::new(self.domains_seen, key, stream));
        self.domains_seen += 1;
        self.domains.len() - 1
    }

    /// Looks which leases ended, and chooses the slot that the policy chose for the same request when it
    /// saw the same slots, all free.
    #[inline(always)]
    pub(super) fn known(&mut self, domain: usize, bytes: usize) -> Option<Chosen<'_>> {
        let slots = self.domains.get_mut(domain)?;
        if !slots.refresh() {
            return None;
        }
        let index = slots.remembered(bytes)?;
        self.place(domain, index)
    }

    /// The slot that was chosen anew.
    pub(super) fn chosen(&mut self, domain: usize, index: usize) -> Chosen<'_> {
        let slots = &mut self.domains[domain];
        Chosen {
            slot: &mut slots.live[index],
            view: &mut slots.views[index],
            lent: &mut self.lent,
            place: (domain, index),
        }
    }

    /// The slot lent last.
    #[inline(always)]
    pub(super) fn lent(&mut self) -> Option<Chosen<'_>> {
        let (domain, index) = self.lent;
        self.place(domain, index)
    }

    #[inline(always)]
    fn place(&mut self, domain: usize, index: usize) -> Option<Chosen<'_>> {
        let slots = self.domains.get_mut(domain)?;
        Some(Chosen {
            slot: slots.live.get_mut(index)?,
            view: slots.views.get_mut(index)?,
            lent: &mut self.lent,
            place: (domain, index),
        })
    }

    #[inline]
    pub(super) fn at(&mut self, domain: usize) -> &mut Slots {
        &mut self.domains[domain]
    }

    pub(super) fn domains(&self) -> &[Slots] {
        &self.domains
    }

    pub(super) fn retired(&self) -> &[Slot] {
        &self.retired
    }

    /// The next slot's identity.
    pub(super) fn next_slot(&mut self) -> SlotId {
        self.slots_seen += 1;
        SlotId(self.slots_seen)
    }

    /// Moves a reserved slot into another domain.
    pub(super) fn hand_over(&mut self, index: usize, domain: usize) -> usize {
        let slot = self.domains[SHARED].remove(index);
        self.moved = true;
        self.domains[domain].push(slot)
    }

    /// Domains of streams, but not the one at that index.
    fn of_streams(&self, but: Option<usize>) -> impl Iterator<Item = &Slots> {
        let domains = self.domains.iter().enumerate();
        domains
            .filter(move |&(index, slots)| slots.stream.is_some() && Some(index) != but)
            .map(|(_, slots)| slots)
    }

    /// The slots that streams have, but not the domain at that index. Ascending.
    pub(super) fn lent_to_streams(&self, but: Option<usize>) -> Vec<SlotId> {
        sorted(self.of_streams(but).flat_map(|slots| &slots.live))
    }

    /// The slots of streams that are gone on this rank. Ascending.
    pub(super) fn lent_to_gone(&self) -> Vec<SlotId> {
        let gone = self.of_streams(None).filter(|slots| slots.is_of_gone());
        sorted(gone.flat_map(|slots| &slots.live))
    }

    /// Moves slots into the shared domain, and forgets the domains that have none left then.
    pub(super) fn share(&mut self, ids: &[SlotId]) {
        let is_wanted = |slot: &Slot| ids.binary_search(&slot.id).is_ok();
        let mut emptied = Vec::new();
        for index in SHARED + 1..self.domains.len() {
            let had = self.domains[index].live.len();
            while let Some(at) = self.domains[index].live.iter().position(is_wanted) {
                let slot = self.domains[index].remove(at);
                self.domains[SHARED].push(slot);
            }
            if had > 0 && self.domains[index].live.is_empty() {
                emptied.push(self.domains[index].ordinal);
            }
        }
        self.domains
            .retain(|slots| !emptied.contains(&slots.ordinal));
    }

    /// The live slots of the shared domain. Ascending.
    pub(super) fn shared(&self) -> Vec<SlotId> {
        self.live_in(SHARED)
    }

    /// Retires every slot but these of the shared domain, and forgets all other domains; the next one is
    /// numbered from `seen`.
    pub(super) fn begin_anew(&mut self, shared: &[SlotId], seen: u64) {
        for slots in &mut self.domains {
            let mut at = 0;
            while let Some(slot) = slots.live.get(at) {
                match slots.key == Domain::Shared && shared.binary_search(&slot.id).is_ok() {
                    true => at += 1,
                    false => self.retired.push(slots.remove(at)),
                }
            }
        }
        self.retired.sort_unstable_by_key(|slot| slot.id);
        self.forget_empty_domains();
        self.domains_seen = seen;
    }

    /// Domains opened so far.
    pub(super) fn domains_seen(&self) -> u64 {
        self.domains_seen
    }

    /// Retires what is live in a domain.
    pub(super) fn retire(&mut self, domain: usize) {
        let slots = &mut self.domains[domain];
        slots.views_to_change().clear();
        self.retired.append(&mut slots.live);
        self.retired.sort_unstable_by_key(|slot| slot.id);
    }

    /// Retires one live slot of a domain, and gives it.
    pub(super) fn supersede(&mut self, domain: usize, id: SlotId) -> Option<&mut Slot> {
        let slots = &mut self.domains[domain];
        let index = slots.live.iter().position(|slot| slot.id == id)?;
        let slot = slots.remove(index);
        self.retire_one(slot);
        self.retired.iter_mut().find(|slot| slot.id == id)
    }

    /// Keeps a slot that could not be freed.
    pub(super) fn retire_one(&mut self, slot: Slot) {
        self.retired.push(slot);
        self.retired.sort_unstable_by_key(|slot| slot.id);
    }

    /// Slots that nobody will be given again: retired ones, and those of domains of captures,
    /// whose identity is never used again once the capture has ended. Ascending.
    pub(super) fn leftovers(&self) -> Vec<SlotId> {
        let captures = self
            .domains
            .iter()
            .filter(|slots| matches!(slots.key, Domain::Graph(_)));
        let of_captures = captures.flat_map(|slots| &slots.live);
        sorted(self.retired.iter().chain(of_captures))
    }

    /// The live slots of a domain. Ascending.
    pub(super) fn live_in(&self, domain: usize) -> Vec<SlotId> {
        sorted(self.domains[domain].live.iter())
    }

    /// Every slot, ascending.
    pub(super) fn everything(&self) -> Vec<SlotId> {
        sorted(self.iter())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        let live = self.domains.iter().flat_map(|slots| &slots.live);
        self.retired.iter().chain(live)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        let live = self.domains.iter_mut().flat_map(|slots| &mut slots.live);
        self.retired.iter_mut().chain(live)
    }

    /// Takes a slot out. If it was the newest generation of an arena, the one before it is lent
    /// again, so that its bytes are not there for graphs alone.
    pub(super) fn take(&mut self, id: SlotId) -> Option<Slot> {
        if let Some(index) = self.retired.iter().position(|slot| slot.id == id) {
            return Some(self.retired.remove(index));
        }
        let (domain, index) = self
            .domains
            .iter()
            .enumerate()
            .find_map(|(domain, slots)| {
                let index = slots.live.iter().position(|slot| slot.id == id)?;
                Some((domain, index))
            })?;
        let mut slot = self.domains[domain].remove(index);
        let before = slot.arena.and_then(|arena| {
            let same = |other: &Slot| other.arena == Some(arena);
            self.retired.iter().rposition(same)
        });
        if let Some(before) = before {
            let mut before = self.retired.remove(before);
            before.inherit(&mut slot);
            self.domains[domain].push(before);
        }
        Some(slot)
    }

    /// Takes all slots out, ascending.
    pub(super) fn take_all(&mut self) -> Vec<Slot> {
        let mut all: Vec<_> = self.retired.drain(..).collect();
        for slots in &mut self.domains {
            slots.views_to_change().clear();
            all.append(&mut slots.live);
        }
        all.sort_unstable_by_key(|slot| slot.id);
        all
    }

    /// Forgets domains without slots, but not the first.
    pub(super) fn forget_empty_domains(&mut self) {
        self.domains
            .retain(|slots| slots.key == Domain::Shared || !slots.live.is_empty());
    }

    /// Bytes that the device lost to all slots, each once.
    pub(super) fn mapped(&self) -> usize {
        self.mapped_without(&[])
    }

    /// Bytes that the device would have lost to the slots that are not `going`.
    pub(super) fn mapped_without(&self, going: &[SlotId]) -> usize {
        let staying = || self.iter().filter(|slot| !going.contains(&slot.id));
        let newest = |slot: &Slot| {
            let newer = |other: &Slot| other.arena == slot.arena && other.id > slot.id;
            slot.arena.is_none() || !staying().any(newer)
        };
        staying()
            .filter(|slot| newest(slot))
            .map(|slot| slot.mapped)
            .fold(0, usize::saturating_add)
    }

    /// The state that must be equal on all ranks.
    pub(super) fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        for slots in &self.domains {
            digest = digest.word(slots.ordinal).size(slots.live.len());
            for slot in &slots.live {
                digest = digest.word(slot.id.0).size(slot.capacity);
            }
        }
        for slot in &self.retired {
            digest = digest.word(slot.id.0).size(slot.capacity);
        }
        digest.finish()
    }

    /// The slots, wherever they lie.
    pub(super) fn contents(&self) -> u64 {
        let mut all: Vec<_> = self.iter().map(|slot| (slot.id, slot.capacity)).collect();
        all.sort_unstable();
        let digest = all.iter().fold(Digest::new(), |digest, (id, capacity)| {
            digest.word(id.0).size(*capacity)
        });
        digest.finish()
    }

    pub(super) fn stats(&self) -> Vec<SlotStats> {
        let retired = self.retired.iter().map(|slot| slot.stats(true));
        let live = self.domains.iter().flat_map(|slots| &slots.live);
        let mut all: Vec<_> = retired.chain(live.map(|slot| slot.stats(false))).collect();
        all.sort_unstable_by_key(|slot| slot.generation);
        all
    }
}

fn sorted<'a>(slots: impl Iterator<Item = &'a Slot>) -> Vec<SlotId> {
    let mut ids: Vec<_> = slots.map(|slot| slot.id).collect();
    ids.sort_unstable();
    ids
}
