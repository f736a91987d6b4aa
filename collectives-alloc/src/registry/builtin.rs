//! How configuration makes the policies of this crate.

use collectives_core::error::{Error, Result};

use crate::arena::Arena;
use crate::config::{Key, ScratchConfig};
use crate::exact::Exact;
use crate::geometric::Geometric;
use crate::geometric_class::GeometricClass;
use crate::policy::Policy;
use crate::registry::{MakePolicy, Maker, Registry};
use crate::replace::Replace;
use crate::reserved::Reserved;

impl Registry {
    /// The policies of this crate.
    #[must_use]
    pub fn builtin() -> Self {
        let makers: [(&str, MakePolicy); 6] = [
            ("exact", |_| Ok(Box::new(Exact::new()))),
            ("replace", |config| {
                Ok(Box::new(Replace::new(growth(config))?))
            }),
            ("geometric", |config| {
                Ok(Box::new(Geometric::new(growth(config))?))
            }),
            ("geometric-class", |config| {
                let classes = config.classes_per_octave.unwrap_or(1);
                Ok(Box::new(GeometricClass::new(classes)?))
            }),
            ("reserved", reserved),
            ("arena", |config| {
                let growth = config.growth.unwrap_or(Arena::DEFAULT_GROWTH);
                Ok(Box::new(Arena::new(growth)?))
            }),
        ];
        let named = |(name, maker): (&str, MakePolicy)| (name.to_owned(), Maker::Policy(maker));
        Self {
            makers: makers.map(named).into(),
        }
    }
}

fn growth(config: &ScratchConfig) -> f64 {
    config.growth.unwrap_or(ScratchConfig::DEFAULT_GROWTH)
}

fn reserved(config: &ScratchConfig) -> Result<Box<dyn Policy>> {
    let largest = config.largest_request()?.ok_or_else(|| {
        Error::config(format!(
            "{}, which needs `max_request`, or `max_tokens`, `hidden` and `dtype`",
            config.describe(Key::Policy)
        ))
    })?;
    // What exceeds the cap is never staged, and most of what exceeds a piece goes in pieces: room for what
    // cannot be cut is reserved by who needs it.
    let bytes = [config.cap, config.piece]
        .into_iter()
        .flatten()
        .fold(largest, Ord::min);
    Ok(Box::new(Reserved::new(bytes.get(), growth(config))?))
}
