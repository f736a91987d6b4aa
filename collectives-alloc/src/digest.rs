//! A digest of configuration and decisions that ranks compare.

/// A 64-bit digest of words, in order; equal on all ranks for equal words.
///
/// It finds ranks that were configured or driven differently. It is no defence against somebody
/// who looks for collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Digest {
    /// The digest of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more word.
    pub const fn word(self, word: u64) -> Self {
        let mut mixed = (self.0 ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
        Self(mixed.wrapping_add(0x94d0_49bb_1331_11eb))
    }

    /// With one more size.
    pub const fn size(self, size: usize) -> Self {
        self.word(size as u64)
    }

    /// With a size that may be absent, which differs from every size.
    pub const fn maybe(self, size: Option<usize>) -> Self {
        match size {
            Some(size) => self.word(1).size(size),
            None => self.word(0),
        }
    }

    /// With a text and its length.
    pub fn text(self, text: &str) -> Self {
        text.bytes().fold(self.size(text.len()), |digest, byte| {
            digest.word(byte.into())
        })
    }

    /// The number.
    #[must_use]
    pub const fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_presence_and_length_matter() {
        let digest = Digest::new();
        assert_ne!(digest.word(1).word(2), digest.word(2).word(1));
        assert_ne!(digest.maybe(None), digest.maybe(Some(0)));
        assert_ne!(digest.text("ab").text("c"), digest.text("a").text("bc"));
        assert_ne!(digest.word(0), digest);
    }
}
