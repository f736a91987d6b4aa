//! Pricing a workload without spending anything.

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;
use collectives_core::scratch::{Plan, Request, SlotId};

use crate::model::{self, Domain, Key, Model, Outside, Refused, Rules};
use crate::options::{DomainMode, Options};
use crate::pool::slot::Slot;
use crate::pool::table::{SHARED, Slots};
use crate::pool::{Home, Pool};

/// What is known of room and of who holds slots, by one rank or by all.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Slots that nobody holds, ascending.
    pub(super) free: Vec<SlotId>,
    /// Slots of streams that are gone, ascending, which `reserve` would take back.
    pub(super) gone: Vec<SlotId>,
    pub(super) outside: Outside,
    /// The rank whose budget has the least left.
    pub(super) poorest: Rank,
}

/// What serving requests would come to.
#[derive(Debug)]
pub(super) struct Priced {
    pub(super) plan: Plan,
    /// Why the first request that would not be staged is refused.
    pub(super) refusal: Option<Error>,
    /// The first that takes a slot more.
    pub(super) first_miss: Option<usize>,
    /// Whether a slot would be made that maps bytes which may be mapped again.
    pub(super) extends: bool,
}

impl Pool {
    /// What this rank knows of the requests, one after another.
    pub(super) fn plan_at(
        &mut self,
        comm: &mut dyn Communicator,
        requests: &[Request],
    ) -> Result<Plan> {
        check_requests(requests)?;
        comm.device().collect();
        let everything = self.table.everything();
        let free = self.ballot(everything, false).free_here();
        let gone = match self.orders_by_events {
            true => self.table.lent_to_gone(),
            false => Vec::new(),
        };
        let known = Known {
            free,
            gone,
            outside: self.outside(comm),
            poorest: comm.info().rank,
        };
        let may_grow = self.may_grow(comm);
        let home = Home::of(comm.info());
        let priced = self.price(home, &self.options, &known, requests, &may_grow);
        Ok(priced.plan)
    }

    /// What takes room beside the slots, as far as this rank knows.
    pub(super) fn outside(&self, comm: &mut dyn Communicator) -> Outside {
        let windows = comm
            .symmetric()
            .map_or(0, |symmetric| symmetric.window_count());
        Outside {
            windows: windows.saturating_sub(self.table.iter().count()),
            addresses: self.most_addresses(),
            spare: self.budget.as_ref().map(crate::budget::Budget::left),
        }
    }

    /// Whether a slot may be made at all outside captures, or why not.
    pub(super) fn may_grow(&self, comm: &mut dyn Communicator) -> Result<()> {
        match self.sealed {
            true => Err(Misuse::Sealed.into()),
            false => self.can_register(comm),
        }
    }

    /// Whether registering can work here, or why it never will.
    pub(super) fn can_register(&self, comm: &mut dyn Communicator) -> Result<()> {
        if let Some(why) = &self.unsupported {
            return Err(Error::unsupported(why.clone()));
        }
        if comm.symmetric().is_none() {
            let why = comm.capabilities().symmetric.clone().err();
            let none = || Unsupported::SymmetricMemory("the backend offers none".to_owned());
            return Err(Error::unsupported(why.unwrap_or_else(none)));
        }
        Ok(())
    }

    /// Serves the requests one after another on a model of the slots there are.
    pub(super) fn price(
        &self,
        home: Home,
        options: &Options,
        known: &Known,
        requests: &[Request],
        may_grow: &Result<()>,
    ) -> Priced {
        let rules = Rules {
            policy: &*self.policy,
            options,
            granule: home.granule,
            overhead: home.overhead,
        };
        let mut model = self.model(rules, known);
        let mut plan = Plan::default();
        let mut refusal = None;
        let mut refuse = |bytes, refused| {
            refusal.get_or_insert_with(|| match refused {
                Refused::By(why) => Error::new(ErrorKind::Refused { bytes, why }),
                Refused::Memory(bytes) => {
                    let rank = known.poorest;
                    Error::new(ErrorKind::OutOfMemory { rank, bytes })
                }
                Refused::Miss => match may_grow {
                    Err(why) => why.clone(),
                    Ok(()) => Misuse::Sealed.into(),
                },
            });
        };
        let (mut served, mut first_miss) = (Vec::new(), None);
        for &Request { bytes } in requests {
            match model.reserve(bytes, may_grow.is_ok()) {
                Ok(grown) => {
                    plan.registrations += usize::from(grown);
                    if grown {
                        first_miss.get_or_insert(bytes);
                    }
                    served.push(bytes);
                }
                Err(refused) => {
                    plan.refused += 1;
                    refuse(bytes, refused);
                }
            }
        }
        if let Err(refused) = model.keeps(&served) {
            plan.refused += 1;
            refuse(0, refused);
        }
        plan.capacities = model.capacities();
        (plan.capacity_bytes, plan.mapped_bytes) = model.kept.bytes();
        Priced {
            plan,
            refusal,
            first_miss,
            extends: model.has_extended(),
        }
    }

    /// The slots there are, as sizes.
    fn model<'a>(&self, rules: Rules<'a>, known: &Known) -> Model<'a> {
        let slot = |slot: &Slot| model::Slot {
            generation: slot.id.0,
            capacity: slot.capacity,
            leased: slot.is_leased(),
            claimed: known.free.binary_search(&slot.id).is_err(),
            arena: slot.arena.map(|first| first.0),
        };
        let is_gone = |slot: &Slot| known.gone.binary_search(&slot.id).is_ok();
        let domain = |(index, slots): (usize, &Slots)| {
            let number = u32::try_from(slots.ordinal).unwrap_or(u32::MAX);
            let key = match self.options.domain {
                _ if index == SHARED => Key::Shared,
                DomainMode::Graph => Key::Graph(number),
                _ => Key::Stream(number),
            };
            let mut domain = Domain::new(key);
            let own = slots.live().iter().filter(|slot| !is_gone(slot));
            let mut live: Vec<_> = match index {
                SHARED => {
                    let others = self.table.iter().filter(|slot| is_gone(slot));
                    own.chain(others).collect()
                }
                _ => own.collect(),
            };
            live.sort_unstable_by_key(|slot| slot.id);
            for one in live {
                domain.push(slot(one));
            }
            domain
        };
        let domains = self.table.domains().iter().enumerate().map(domain);
        let retired = self.table.retired().iter().map(slot);
        Model::of(rules, known.outside, domains.collect(), retired.collect())
    }
}

/// Refuses requests for nothing.
pub(super) fn check_requests(requests: &[Request]) -> Result<()> {
    match requests.iter().all(|request| request.bytes > 0) {
        true => Ok(()),
        false => Err(Misuse::ZeroBytes.into()),
    }
}
