//! Reading and writing a configuration in any serde format.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::ScratchConfig;
use super::keys::Key;
use super::source::Origin;

impl Serialize for ScratchConfig {
    /// Every key that has a value, defaults included.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for key in Key::ALL {
            if let Some(value) = self.value(key) {
                map.serialize_entry(key.name(), &value)?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ScratchConfig {
    /// The keys given, over the defaults; the result is valid.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = ScratchConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the scratch table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ScratchConfig, A::Error> {
        let mut config = ScratchConfig::default();
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            if !seen.insert(key) {
                let text = format!("the key `{}` is given twice", key.name());
                return Err(de::Error::custom(text));
            }
            let config = &mut config;
            map.next_value_seed(ValueSeed { config, key })?;
        }
        config.check_all().map_err(de::Error::custom)?;
        Ok(config)
    }
}

/// Refuses unknown keys where the format still knows their place.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of the scratch table")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
        Key::find(name).map_err(E::custom)
    }
}

/// Puts one value into the configuration; numbers and flags are as good as their texts.
struct ValueSeed<'a> {
    config: &'a mut ScratchConfig,
    key: Key,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for `{}` {}", self.key.name(), self.key.allowed())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.config
            .assign(self.key, text, Origin::Document)
            .map_err(E::custom)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }
}
