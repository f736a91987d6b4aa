//! Growing before anything is served.

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, MissedWhen, Result};
use collectives_core::outcome;
use collectives_core::rank::Rank;
use collectives_core::scratch::{Plan, Request, ScratchAllocator};

use crate::digest::Digest;
use crate::model::Outside;
use crate::options::{Options, Seal};
use crate::pool::plan::{Known, check_requests};
use crate::pool::round::{Step, Subject};
use crate::pool::table::SHARED;
use crate::pool::{Growing, Home, Pool};
use crate::verdict::Verdict;

/// What a budget that is not there has left.
const ENDLESS: u64 = u64::MAX;

impl Pool {
    /// Reserves all of the requests, or refuses all of them before anything is spent.
    ///
    /// What ranks see differently, who holds slots and what is left of budgets, is told in one round; the
    /// verdict over it is the same everywhere.
    pub(super) fn reserve_all(
        &mut self,
        comm: &mut dyn Communicator,
        requests: &[Request],
    ) -> Result<Plan> {
        let home = self.admit(comm.info())?;
        self.take_back_from_gone(comm, None)?;
        let (mut known, spares) = self.meet_to_reserve(comm, requests)?;
        let mut priced = self.price(home, &self.options, &known, requests, &Ok(()));
        if priced.extends {
            self.learn_addresses(comm)?;
            known.outside.addresses = self.most_addresses();
            priced = self.price(home, &self.options, &known, requests, &Ok(()));
        }
        if let Some(refusal) = priced.refusal {
            let first = spares.into_iter().enumerate().find_map(|(rank, spare)| {
                known.outside.spare = spare;
                known.poorest = Rank::new(rank);
                let priced = self.price(home, &self.options, &known, requests, &Ok(()));
                priced.refusal
            });
            return Err(first.unwrap_or(refusal));
        }
        self.want = None;
        let mut registrations = 0;
        for request in requests {
            let verdict = self.decide(SHARED, &home.ask(request.bytes))?;
            if let Verdict::Grow { capacity, how } = verdict {
                let growing = Growing {
                    domain: SHARED,
                    bytes: request.bytes,
                    capacity,
                    how,
                };
                self.grow(comm, growing, Step::ReserveMiss)?;
                registrations += 1;
            }
        }
        // Where memory ran out, slots of this very reservation may have been given up for a later one.
        if let Some(want) = self.want.take() {
            for request in requests {
                match self.decide(SHARED, &home.ask(request.bytes))? {
                    Verdict::Hit(_) => {}
                    Verdict::Grow { .. } => return Err(want),
                }
            }
        }
        if self.options.seal == Seal::AfterReserve {
            self.seal();
        }
        Ok(Plan {
            registrations,
            ..self.plan_at(comm, &[])?
        })
    }

    /// The round before: whether the requests are right, what all ranks know then, and what is left of
    /// each rank's budget, if it has one.
    fn meet_to_reserve(
        &mut self,
        comm: &mut dyn Communicator,
        requests: &[Request],
    ) -> Result<(Known, Vec<Option<usize>>)> {
        comm.device().collect();
        // What is wrong on this rank alone must not keep it from the round.
        let may = self.may_reserve(comm, requests);
        let capturing = self.is_capturing(comm);
        let everything = self.table.everything();
        let ballot = self.ballot(everything, false);
        let outside = self.outside(comm);
        let facts = match &may {
            Err(_) => outcome::facts(&may),
            Ok(_) => {
                let mut facts = ballot.facts(0);
                facts.push(capturing.into());
                facts.push(outside.spare.map_or(ENDLESS, |spare| spare as u64));
                facts
            }
        };
        let bytes = match requests {
            [request] => request.bytes as u64,
            many => many
                .iter()
                .fold(Digest::new(), |digest, request| digest.size(request.bytes))
                .finish(),
        };
        let subject = Subject {
            count: requests.len(),
            bytes,
            ..Subject::default()
        };
        let records = self.round(comm, Step::Reserve, subject, &facts)?;
        let misses = outcome::settle(may, &records)?;
        let last = |back: usize| {
            let records = records.iter();
            records.map(move |record| record.facts().iter().rev().nth(back).copied())
        };
        if let Some(bytes) = misses
            && last(1).any(|capturing| capturing != Some(0))
        {
            return Err(Error::new(ErrorKind::NeedsReserve {
                bytes,
                domain: self.table.at(SHARED).label(),
                when: MissedWhen::Capturing,
            }));
        }
        let spares: Vec<_> = last(0)
            .map(|left| match left.unwrap_or(0) {
                ENDLESS => None,
                left => Some(usize::try_from(left).unwrap_or(usize::MAX)),
            })
            .collect();
        let known = Known {
            free: ballot.free(&records),
            gone: Vec::new(),
            outside: Outside {
                spare: spares.iter().copied().flatten().min(),
                ..outside
            },
            poorest: comm.info().rank,
        };
        Ok((known, spares))
    }

    /// Whether the requests are right, by what depends on no other rank; the first that takes a slot
    /// more, if there is one.
    fn may_reserve(
        &self,
        comm: &mut dyn Communicator,
        requests: &[Request],
    ) -> Result<Option<usize>> {
        check_requests(requests)?;
        let may_grow = self.may_grow(comm);
        // Room is another matter: who holds slots, all ranks find out together.
        let roomy = Options {
            limit: None,
            max_windows: None,
            ..self.options.clone()
        };
        let known = Known {
            free: Vec::new(),
            gone: Vec::new(),
            outside: Outside::default(),
            poorest: comm.info().rank,
        };
        let home = Home::of(comm.info());
        let priced = self.price(home, &roomy, &known, requests, &may_grow);
        priced.refusal.map_or(Ok(priced.first_miss), Err)
    }
}
