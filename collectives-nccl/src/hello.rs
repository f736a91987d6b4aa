//! What ranks tell each other before NCCL is set up, and what follows from it on all of them.

use std::env;
use std::fs;

use collectives_core::agreement::{mismatch, odd_one_out};
use collectives_core::error::{Error, Field, Misuse, Result, Unsupported};
use nccl_sys::{UniqueId, Version};

use crate::known_bad::{self, Remedy};
use crate::options::Options;

/// What one rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// Whether the environment allows several ranks on one GPU, and keeps multicast off.
    pub(crate) may_share: bool,
    /// Equal on two ranks exactly when they use one GPU.
    pub(crate) gpu: [u8; 24],
    /// The first rank's; zeros elsewhere.
    pub(crate) id: [u8; UniqueId::BYTES],
    /// Why this rank has no symmetric memory; empty if it has.
    pub(crate) no_symmetric: String,
}

const FIXED: usize = 4 + 1 + 24 + UniqueId::BYTES;

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.no_symmetric.len());
        bytes.extend(self.version.to_le_bytes());
        bytes.push(u8::from(self.may_share));
        bytes.extend(self.gpu);
        bytes.extend(self.id);
        bytes.extend(self.no_symmetric.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let garbled = || Error::from(Misuse::Other("a greeting is garbled".to_owned()));
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or_else(garbled)?;
        let (&may_share, rest) = rest.split_first().ok_or_else(garbled)?;
        let (gpu, rest) = rest.split_first_chunk::<24>().ok_or_else(garbled)?;
        let (id, rest) = rest
            .split_first_chunk::<{ UniqueId::BYTES }>()
            .ok_or_else(garbled)?;
        Ok(Self {
            version: u32::from_le_bytes(*version),
            may_share: may_share != 0,
            gpu: *gpu,
            id: *id,
            no_symmetric: String::from_utf8_lossy(rest).into_owned(),
        })
    }
}

/// What follows from all greetings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accord {
    pub(crate) id: [u8; UniqueId::BYTES],
    pub(crate) symmetric: Result<(), Unsupported>,
    /// Whether ranks share a GPU.
    pub(crate) shared: bool,
}

/// A pure function of what all ranks told, so that all come to the same.
pub(crate) fn accord(all: &[Hello], options: &Options) -> Result<Accord> {
    let versions: Vec<_> = all.iter().map(|hello| hello.version).collect();
    if let Some((odd, usual)) = odd_one_out(&versions) {
        let show = |index: usize| Version::from_code(versions[index]).to_string();
        return Err(mismatch(odd, Field::Version, show(odd), show(usual)));
    }
    let first = all
        .first()
        .ok_or_else(|| Misuse::Other("a world without ranks".to_owned()))?;
    check_shared_gpus(all, Version::from_code(first.version), options)?;
    let reason = all.iter().find(|hello| !hello.no_symmetric.is_empty());
    Ok(Accord {
        id: first.id,
        symmetric: match reason {
            None => Ok(()),
            Some(hello) => Err(Unsupported::SymmetricMemory(hello.no_symmetric.clone())),
        },
        shared: (1..all.len())
            .any(|rank| all[..rank].iter().any(|other| other.gpu == all[rank].gpu)),
    })
}

fn check_shared_gpus(all: &[Hello], version: Version, options: &Options) -> Result<()> {
    let shares = |hello: &&Hello| all.iter().filter(|other| other.gpu == hello.gpu).count() > 1;
    let sharing: Vec<_> = all.iter().filter(shares).collect();
    if sharing.is_empty() {
        return Ok(());
    }
    let refuse = |text: String| Err(Error::unsupported(Unsupported::Operation(text)));
    if let Some(defect) = known_bad::of(version, Remedy::OneRankPerGpu, &options.allow).next() {
        return refuse(format!(
            "several ranks use one GPU, and NCCL {version}: {} ({})",
            defect.what, defect.link
        ));
    }
    if sharing.iter().any(|hello| !hello.may_share) {
        return refuse(
            "several ranks use one GPU: give each its own, or set NCCL_MULTI_RANK_GPU_ENABLE=1 \
             and NCCL_NVLS_ENABLE=0 on all of them"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether this process allows ranks to share a GPU.
pub(crate) fn may_share() -> bool {
    let is = |name, value| env::var(name).is_ok_and(|found| found.trim() == value);
    is("NCCL_MULTI_RANK_GPU_ENABLE", "1") && is("NCCL_NVLS_ENABLE", "0")
}

/// Why this rank has no symmetric memory, apart from its GPU.
pub(crate) fn no_symmetric(version: Version, options: &Options) -> Option<String> {
    if let Some(defect) = known_bad::of(version, Remedy::NoSymmetricMemory, &options.allow).next() {
        return Some(format!(
            "NCCL {version}: {} (`{}`, {})",
            defect.what, defect.name, defect.link
        ));
    }
    let off = |name: &str| env::var(name).is_ok_and(|value| value.trim() == "0");
    ["NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"]
        .into_iter()
        .find(|name| off(name))
        .map(|name| format!("{name}=0 switches it off"))
}

/// The GPU of this process, the same for all processes of the machine.
pub(crate) fn gpu_identity(uuid: [u8; 16]) -> [u8; 24] {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // FNV-1a; machines must only rarely look alike.
    let hash = boot.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut identity = [0; 24];
    identity[..8].copy_from_slice(&hash.to_le_bytes());
    identity[8..].copy_from_slice(&uuid);
    identity
}

#[cfg(test)]
mod tests {
    use collectives_core::error::ErrorKind;
    use collectives_core::rank::Rank;

    use super::*;

    fn hello(gpu: u8) -> Hello {
        Hello {
            version: 23_203,
            may_share: true,
            gpu: [gpu; 24],
            id: [gpu; 128],
            no_symmetric: String::new(),
        }
    }

    #[test]
    fn greetings_survive_the_wire() {
        let mut one = hello(3);
        one.no_symmetric = "because".to_owned();
        assert_eq!(Hello::decode(&one.encode()).unwrap(), one);
        assert!(Hello::decode(&one.encode()[..50]).is_err());
    }

    #[test]
    fn mixed_versions_are_a_mismatch_that_names_the_odd_rank() {
        let mut all = vec![hello(0), hello(1), hello(2)];
        all[1].version = 23_007;
        let error = accord(&all, &Options::default()).unwrap_err();
        let ErrorKind::Mismatch {
            rank,
            field,
            theirs,
            ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!(
            (*rank, *field, theirs.as_str()),
            (Rank(1), Field::Version, "2.30.7")
        );
    }

    #[test]
    fn ranks_share_a_gpu_only_where_that_was_allowed() {
        let shared = || vec![hello(7), hello(7)];
        assert!(accord(&shared(), &Options::default()).is_ok());
        let mut forbidden = shared();
        forbidden[1].may_share = false;
        let error = accord(&forbidden, &Options::default()).unwrap_err();
        assert!(
            error.to_string().contains("NCCL_MULTI_RANK_GPU_ENABLE=1"),
            "{error}"
        );
        let mut old = shared();
        old.iter_mut().for_each(|hello| hello.version = 22_809);
        assert!(accord(&old, &Options::default()).is_err());
        forbidden[1].gpu = [8; 24];
        assert!(accord(&forbidden, &Options::default()).is_ok());
    }

    #[test]
    fn one_rank_without_symmetric_memory_is_enough() {
        let mut all = vec![hello(0), hello(1)];
        all[1].no_symmetric = "no such thing".to_owned();
        let found = accord(&all, &Options::default()).unwrap();
        assert!(found.symmetric.is_err());
        assert_eq!(found.id, [0; 128]);
    }

    #[test]
    fn old_versions_say_why_they_have_no_symmetric_memory() {
        let text = no_symmetric(Version::new(2, 28, 9), &Options::default()).unwrap();
        assert!(
            text.contains("launch-race") && text.contains("https://"),
            "{text}"
        );
    }
}
