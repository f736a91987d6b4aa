//! Names for policies and allocators, so that configuration can choose one.
//!
//! A third party registers its own under a name and has it chosen like any other:
//!
//! ```
//! use collectives_alloc::config::ScratchConfig;
//! use collectives_alloc::policy::{Ask, Decision, Policy, SlotView, best_fit};
//! use collectives_alloc::registry;
//!
//! #[derive(Debug)]
//! struct Tight;
//!
//! impl Policy for Tight {
//!     fn name(&self) -> &str {
//!         "tight"
//!     }
//!     fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
//!         let grow = Decision::Grow { capacity: ask.bytes, retire: false };
//!         best_fit(slots, ask.bytes).map_or(grow, Decision::Hit)
//!     }
//!     fn digest(&self) -> u64 {
//!         0
//!     }
//!     fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
//!         None
//!     }
//! }
//!
//! registry::register_policy("tight", |_| Ok(Box::new(Tight)))?;
//! let config = ScratchConfig::from_toml("[scratch]\npolicy = \"tight\"")?;
//! assert_eq!(config.build()?.name(), "tight");
//! # Ok::<(), collectives_core::error::Error>(())
//! ```

use std::collections::BTreeMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use collectives_core::error::{Error, Result};
use collectives_core::scratch::ScratchAllocator;

use crate::budget::Budget;
use crate::config::{Key, ScratchConfig};
use crate::nearest;
use crate::policy::Policy;
use crate::pool::Pool;

mod builtin;

/// Makes a policy for the pool.
pub type MakePolicy = fn(&ScratchConfig) -> Result<Box<dyn Policy>>;

/// Makes a whole allocator.
pub type MakeAllocator = fn(&ScratchConfig) -> Result<Box<dyn ScratchAllocator>>;

/// Names, and what each of them makes.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    makers: BTreeMap<String, Maker>,
}

#[derive(Clone, Copy, Debug)]
enum Maker {
    Policy(MakePolicy),
    Allocator(MakeAllocator),
}

impl Registry {
    /// A registry without any name.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Gives a policy a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) for a name that is taken,
    /// or is not made of lower-case letters, digits, `-`, `_` and `.`.
    pub fn register_policy(&mut self, name: &str, make: MakePolicy) -> Result<()> {
        self.register(name, Maker::Policy(make))
    }

    /// Gives an allocator a name.
    ///
    /// # Errors
    ///
    /// Those of [`Registry::register_policy`].
    pub fn register_allocator(&mut self, name: &str, make: MakeAllocator) -> Result<()> {
        self.register(name, Maker::Allocator(make))
    }

    /// Every name, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.makers.keys().map(String::as_str)
    }

    /// The allocator that a configuration asks for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) for a configuration that is
    /// not valid and for a name that is not registered, and whatever the constructor returns.
    pub fn build(&self, config: &ScratchConfig) -> Result<Box<dyn ScratchAllocator>> {
        self.maker(config)?.build(config)
    }

    /// As [`Registry::build`], with mapped bytes charged to a budget that it shares with others.
    ///
    /// # Errors
    ///
    /// Those of [`Registry::build`], and
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) where the name makes a
    /// whole allocator, which is charged to no budget of ours.
    pub fn build_within(
        &self,
        config: &ScratchConfig,
        budget: Budget,
    ) -> Result<Box<dyn ScratchAllocator>> {
        let policy = self.maker(config)?.build_policy(config)?;
        Ok(Box::new(
            Pool::new(policy, config.options()).with_budget(budget),
        ))
    }

    /// Only the policy that a configuration asks for, for plans and simulations.
    ///
    /// # Errors
    ///
    /// Those of [`Registry::build`], and
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) where the name makes a
    /// whole allocator.
    pub fn build_policy(&self, config: &ScratchConfig) -> Result<Box<dyn Policy>> {
        self.maker(config)?.build_policy(config)
    }

    fn register(&mut self, name: &str, maker: Maker) -> Result<()> {
        let shown = name.escape_debug();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(Error::config(format!(
                "`{shown}` cannot name a policy; allowed are lower-case letters, digits, `-`, `_` \
                 and `.`"
            )));
        }
        if self.makers.contains_key(name) {
            return Err(Error::config(format!(
                "a policy is already registered as `{shown}`"
            )));
        }
        self.makers.insert(name.to_owned(), maker);
        Ok(())
    }

    fn maker(&self, config: &ScratchConfig) -> Result<Maker> {
        config.validate()?;
        let name = config.policy_name();
        self.makers.get(name).copied().ok_or_else(|| {
            let hint = nearest::hint(name, self.names());
            let names: Vec<_> = self.names().collect();
            Error::config(format!(
                "{}, which is not registered{hint}{}registered are {}",
                config.describe(Key::Policy),
                if hint.is_empty() { "; " } else { " " },
                names.join(", ")
            ))
        })
    }
}

impl Maker {
    fn build(self, config: &ScratchConfig) -> Result<Box<dyn ScratchAllocator>> {
        match self {
            Self::Policy(make) => Ok(Box::new(Pool::new(make(config)?, config.options()))),
            Self::Allocator(make) => make(config),
        }
    }

    fn build_policy(self, config: &ScratchConfig) -> Result<Box<dyn Policy>> {
        match self {
            Self::Policy(make) => make(config),
            Self::Allocator(_) => Err(Error::config(format!(
                "{}, which is a whole allocator and no policy",
                config.describe(Key::Policy)
            ))),
        }
    }
}

static PROCESS: LazyLock<RwLock<Registry>> = LazyLock::new(|| RwLock::new(Registry::builtin()));

/// Gives a policy a name in the registry that [`ScratchConfig::build`] uses.
///
/// # Errors
///
/// Those of [`Registry::register_policy`].
pub fn register_policy(name: &str, make: MakePolicy) -> Result<()> {
    let mut registry = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    registry.register_policy(name, make)
}

/// Gives an allocator a name in the registry that [`ScratchConfig::build`] uses.
///
/// # Errors
///
/// Those of [`Registry::register_policy`].
pub fn register_allocator(name: &str, make: MakeAllocator) -> Result<()> {
    let mut registry = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    registry.register_allocator(name, make)
}

/// A copy of the process-wide registry.
#[must_use]
pub fn snapshot() -> Registry {
    let registry = PROCESS.read().unwrap_or_else(PoisonError::into_inner);
    registry.clone()
}

/// What [`ScratchConfig::build`] does. The lock is free while the constructor runs, so that it may
/// build or register others.
pub(crate) fn build(config: &ScratchConfig) -> Result<Box<dyn ScratchAllocator>> {
    snapshot().build(config)
}
