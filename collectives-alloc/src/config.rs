//! Scratch as configuration: what the keys of the `[scratch]` table mean.
//!
//! A value comes from TOML, from any other serde format, from the environment, or from code. The
//! environment wins over a file. An error says which key, which value, where it came from and what
//! is allowed; an unknown key is refused with the known one it is nearest to.
//!
//! ```
//! use collectives_alloc::config::ScratchConfig;
//!
//! let config = ScratchConfig::from_toml("[scratch]\nmax_request = \"80MiB\"")?;
//! assert_eq!(config.policy_name(), "reserved");
//!
//! let error = ScratchConfig::from_toml("[scratch]\npolcy = \"exact\"").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "configuration: the TOML text, line 2, column 1: unknown key `polcy`; did you mean \
//!      `policy`?"
//! );
//! # Ok::<(), collectives_core::error::Error>(())
//! ```

use std::time::Duration;

use collectives_core::dtype::DType;
use collectives_core::error::{Error, Result};
use collectives_core::scratch::ScratchAllocator;

use crate::budget::Budget;
use crate::bytes::ByteSize;
use crate::options::{DomainMode, OnMiss, Options, Ordering, Seal};
use crate::registry;

pub(crate) use self::choice::Choice;
pub(crate) use self::keys::Key;
pub(crate) use self::source::Origin;

mod choice;
mod document;
mod format;
mod keys;
mod source;
mod validate;

/// The `[scratch]` table.
///
/// Start from [`ScratchConfig::default`], from TOML or from the environment, and change fields as
/// needed; [`ScratchConfig::validate`], which [`ScratchConfig::build`] calls, checks them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScratchConfig {
    /// The name of the policy; see [`ScratchConfig::policy_name`] for what `None` means.
    pub policy: Option<String>,
    /// How much larger a new slot is than the largest; each policy has its own default.
    pub growth: Option<f64>,
    /// Size classes per power of two, of `geometric-class`.
    pub classes_per_octave: Option<u32>,
    /// The largest request of the workload.
    pub max_request: Option<ByteSize>,
    /// With `hidden` and `dtype`, another way to say `max_request`.
    pub max_tokens: Option<usize>,
    /// Elements per token.
    pub hidden: Option<usize>,
    /// The type of these elements.
    pub dtype: Option<DType>,
    /// The largest request that is staged at all.
    pub cap: Option<ByteSize>,
    /// Bytes of the lease that a call which needs more goes through, piece by piece.
    pub piece: Option<ByteSize>,
    /// Mapped bytes a communicator may keep.
    pub limit: Option<ByteSize>,
    /// Windows a communicator may have.
    pub max_windows: Option<usize>,
    /// When later growth becomes an error or a fallback.
    pub seal: Seal,
    /// What a miss is when sealed or capturing.
    pub on_miss: OnMiss,
    /// Which uses share slots.
    pub domain: DomainMode,
    /// Who orders uses of one slot on different streams.
    pub ordering: Ordering,
    /// How long ranks wait for each other on a miss.
    pub agree_deadline: Duration,
    /// Whether every call is compared across ranks; see [`Checked`](crate::checked::Checked).
    pub check: bool,
    sources: source::Sources,
}

impl Default for ScratchConfig {
    fn default() -> Self {
        let options = Options::default();
        Self {
            policy: None,
            growth: None,
            classes_per_octave: None,
            max_request: None,
            max_tokens: None,
            hidden: None,
            dtype: None,
            cap: None,
            piece: None,
            limit: None,
            max_windows: None,
            seal: options.seal,
            on_miss: options.on_miss,
            domain: options.domain,
            ordering: options.ordering,
            agree_deadline: options.agree_deadline,
            check: options.check,
            sources: source::Sources::default(),
        }
    }
}

impl ScratchConfig {
    /// The growth factor where neither configuration nor policy says otherwise.
    pub const DEFAULT_GROWTH: f64 = 2.0;

    /// The defaults with a policy.
    ///
    /// ```
    /// use collectives_alloc::config::ScratchConfig;
    ///
    /// let scratch = ScratchConfig::with_policy("geometric-class").build()?;
    /// # Ok::<(), collectives_core::error::Error>(())
    /// ```
    #[must_use]
    pub fn with_policy(name: impl Into<String>) -> Self {
        Self {
            policy: Some(name.into()),
            ..Self::default()
        }
    }

    /// The policy: the one named, else `reserved` where the largest request is given, else
    /// `geometric`.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        let bounded = self.max_request.is_some() || self.max_tokens.is_some();
        match &self.policy {
            Some(name) => name,
            None if bounded => "reserved",
            None => "geometric",
        }
    }

    /// The largest request, however it was given.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) when it was given twice,
    /// in part only, or overflows.
    pub fn largest_request(&self) -> Result<Option<ByteSize>> {
        self.bound().map_err(Error::config)
    }

    /// The rules of the pool.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            cap: self.cap.map(ByteSize::get),
            piece: self.piece.map(ByteSize::get),
            limit: self.limit.map(ByteSize::get),
            max_windows: self.max_windows,
            seal: self.seal,
            on_miss: self.on_miss,
            domain: self.domain,
            ordering: self.ordering,
            agree_deadline: self.agree_deadline,
            check: self.check,
        }
    }

    /// Checks every value, and those that must go together.
    ///
    /// Whether the policy exists is left to the registry that builds it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) for the first that is
    /// wrong.
    pub fn validate(&self) -> Result<()> {
        self.check_all().map_err(Error::config)
    }

    /// The allocator, by the process-wide registry.
    ///
    /// # Errors
    ///
    /// Those of [`Registry::build`](crate::registry::Registry::build).
    pub fn build(&self) -> Result<Box<dyn ScratchAllocator>> {
        registry::build(self)
    }

    /// The allocator, with mapped bytes charged to a budget that the communicators of one device share.
    ///
    /// ```
    /// use collectives_alloc::budget::Budget;
    /// use collectives_alloc::config::ScratchConfig;
    ///
    /// let budget = Budget::new(2 << 30);
    /// let config = ScratchConfig::default();
    /// let tensor_parallel = config.build_within(budget.clone())?;
    /// let data_parallel = config.build_within(budget)?;
    /// # Ok::<(), collectives_core::error::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Registry::build_within`](crate::registry::Registry::build_within).
    pub fn build_within(&self, budget: Budget) -> Result<Box<dyn ScratchAllocator>> {
        registry::snapshot().build_within(self, budget)
    }
}
