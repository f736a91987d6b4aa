//! What a framework flips between steps, on all ranks or on none.

use super::Collectives;
use crate::agreement::{Record, mismatch, odd_one_out};
use crate::communicator::Communicator;
use crate::error::{Error, Field, Misuse, Result};
use crate::path::{Averaging, Fallback, Staging};
use crate::scratch::ScratchAllocator;

/// How the calls of one handle go; each group of ranks has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// When to stage. Whether a call is zero-copy is up to its tensors: a framework that goes
    /// without symmetric memory stages never and passes ordinary ones.
    pub staging: Staging,
    /// Whether a call that cannot take a symmetric path fails.
    pub fallback: Fallback,
    /// How [`Collectives::reduce_scatter_average`] averages.
    pub averaging: Averaging,
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// The settings of this handle.
    #[must_use]
    pub fn switched(&self) -> Switch {
        Switch {
            staging: self.staging,
            fallback: self.fallback,
            averaging: self.averaging,
        }
    }

    /// Sets all of them once every rank has said the same; collective.
    ///
    /// [`Collectives::set_staging`] and its siblings trust that ranks do alike. Where they do not,
    /// calls that follow find out: at once on backends that compare calls, and late or never on
    /// others. This asks first. Scratch, windows and graphs stay as they are.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](crate::error::ErrorKind::Mismatch) of [`Field::Configuration`], the same on
    /// every rank, if ranks differ, and those of [`Communicator::agree`]; nothing changed then, and
    /// it may be tried again. [`Collectives::set_deadline`] says how long ranks wait.
    pub fn switch(&mut self, to: Switch) -> Result<()> {
        self.agree_on(to)
            .map_err(|error| self.with_context(error, "switch"))?;
        self.set_staging(to.staging);
        self.set_fallback(to.fallback);
        self.set_averaging(to.averaging);
        Ok(())
    }

    fn agree_on(&mut self, to: Switch) -> Result<()> {
        let codes = to.codes();
        let mine = Record::new().named(Field::Operation, "switch");
        let mine = codes.into_iter().fold(mine, Record::fact);
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        let said: Vec<_> = records.iter().map(Record::facts).collect();
        let Some((odd, usual)) = odd_one_out(&said) else {
            return Ok(());
        };
        Err(mismatch(
            odd,
            Field::Configuration,
            Switch::show(said[odd])?,
            Switch::show(said[usual])?,
        ))
    }
}

/// The settings as they travel, in the order of the fields.
const STAGING: [Staging; 3] = [Staging::Auto, Staging::Forced, Staging::Never];
const FALLBACK: [Fallback; 2] = [Fallback::Allow, Fallback::Forbid];
const AVERAGING: [Averaging; 3] = [Averaging::Auto, Averaging::Native, Averaging::SumThenScale];

impl Switch {
    fn codes(self) -> [u64; 3] {
        fn code<T: PartialEq>(all: &[T], value: &T) -> u64 {
            all.iter().take_while(|&one| one != value).count() as u64
        }
        [
            code(&STAGING, &self.staging),
            code(&FALLBACK, &self.fallback),
            code(&AVERAGING, &self.averaging),
        ]
    }

    /// The settings that a rank said, in words.
    fn show(codes: &[u64]) -> Result<String> {
        let garbled = || Error::from(Misuse::Other("a switch is garbled".to_owned()));
        let &[staging, fallback, averaging] = codes else {
            return Err(garbled());
        };
        let switch = Self {
            staging: at(&STAGING, staging).ok_or_else(garbled)?,
            fallback: at(&FALLBACK, fallback).ok_or_else(garbled)?,
            averaging: at(&AVERAGING, averaging).ok_or_else(garbled)?,
        };
        Ok(format!("{switch:?}"))
    }
}

fn at<T: Copy>(all: &[T], code: u64) -> Option<T> {
    all.get(usize::try_from(code).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_travels_and_no_two_look_alike() {
        let mut seen = Vec::new();
        for staging in STAGING {
            for fallback in FALLBACK {
                for averaging in AVERAGING {
                    let switch = Switch {
                        staging,
                        fallback,
                        averaging,
                    };
                    let codes = switch.codes();
                    assert_eq!(Switch::show(&codes).unwrap(), format!("{switch:?}"));
                    assert!(!seen.contains(&codes));
                    seen.push(codes);
                }
            }
        }
        assert!(Switch::show(&[3, 0, 0]).is_err() && Switch::show(&[0, 0]).is_err());
    }
}
