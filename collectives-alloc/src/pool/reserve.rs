//! Growing before anything is served.

use collectives_core::communicator::{CommInfo, Communicator};
use collectives_core::error::{Misuse, Result};
use collectives_core::outcome;
use collectives_core::scratch::{Plan, Request, ScratchAllocator};

use crate::digest::Digest;
use crate::options::Seal;
use crate::pool::round::{Step, Subject};
use crate::pool::table::SHARED;
use crate::pool::{Growing, Pool, Verdict};

impl Pool {
    pub(super) fn reserve_all(
        &mut self,
        comm: &mut dyn Communicator,
        requests: &[Request],
    ) -> Result<Plan> {
        let home = self.admit(comm.info())?;
        // What is wrong on this rank alone must not keep it from the round.
        let may = self.may_reserve(comm.info(), requests);
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
        let records = self.round(comm, Step::Reserve, subject, &outcome::facts(&may))?;
        outcome::settle(may, &records)?;
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
        if self.options.seal == Seal::AfterReserve {
            self.seal();
        }
        let plan = self.simulate(comm.info(), &[])?.plan;
        Ok(Plan {
            registrations,
            ..plan
        })
    }

    fn may_reserve(&self, info: &CommInfo, requests: &[Request]) -> Result<()> {
        if self.sealed {
            return Err(Misuse::Sealed.into());
        }
        self.simulate(info, requests)?.refusal.map_or(Ok(()), Err)
    }
}
