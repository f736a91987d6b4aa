//! Versions of NCCL that are known to be wrong, and what we do about it.

use nccl_sys::Version;

/// What is done about a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Symmetric memory is refused; the ordinary path works.
    NoSymmetricMemory,
    /// Several ranks on one GPU are refused.
    OneRankPerGpu,
    /// This backend avoids it.
    WorkedAround,
}

/// A defect of some versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Defect {
    /// Its name, by which a user who knows better allows it.
    pub name: &'static str,
    /// The first version that has it.
    pub from: Version,
    /// The first version that has it no more; `None` if there is none yet.
    pub fixed: Option<Version>,
    /// What happens.
    pub what: &'static str,
    /// Where it is described.
    pub link: &'static str,
    /// What is done.
    pub remedy: Remedy,
}

/// Every defect we know of.
pub const DEFECTS: &[Defect] = &[
    Defect {
        name: "no-windows",
        from: Version::new(0, 0, 0),
        fixed: Some(Version::new(2, 27, 3)),
        what: "there is no symmetric memory",
        link: "https://github.com/NVIDIA/nccl/releases/tag/v2.27.3-1",
        remedy: Remedy::NoSymmetricMemory,
    },
    Defect {
        name: "launch-race",
        from: Version::new(2, 28, 3),
        fixed: Some(Version::new(2, 30, 6)),
        what: "a symmetric kernel may read a window before the kernel in front of it has written it",
        link: "https://github.com/NVIDIA/nccl/issues/1924",
        remedy: Remedy::NoSymmetricMemory,
    },
    Defect {
        name: "duplicate-gpu",
        from: Version::new(0, 0, 0),
        fixed: Some(Version::new(2, 30, 3)),
        what: "several ranks cannot share a GPU",
        link: "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        remedy: Remedy::OneRankPerGpu,
    },
    Defect {
        name: "average-kernel",
        from: Version::new(2, 30, 3),
        fixed: Some(Version::new(2, 32, 0)),
        what: "averaging in an all-reduce on windows calls a kernel that does not exist; we sum, then divide",
        link: "https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/device/symmetric/generate.py",
        remedy: Remedy::WorkedAround,
    },
    Defect {
        name: "shared-gpu-multicast",
        from: Version::new(2, 30, 3),
        fixed: Some(Version::new(2, 31, 2)),
        what: "multicast is tried although ranks share a GPU; we demand NCCL_NVLS_ENABLE=0 there",
        link: "https://github.com/NVIDIA/nccl/issues/2257",
        remedy: Remedy::WorkedAround,
    },
    Defect {
        name: "nested-windows",
        from: Version::new(2, 27, 3),
        fixed: Some(Version::new(2, 32, 0)),
        what: "deregistering one of two windows over the same addresses hangs; we refuse the second",
        link: "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/bufferreg.html",
        remedy: Remedy::WorkedAround,
    },
    Defect {
        name: "windows-in-one-allocation",
        from: Version::new(2, 27, 3),
        fixed: Some(Version::new(2, 31, 2)),
        what: "several windows in one allocation corrupt data; we give each its own addresses",
        link: "https://github.com/NVIDIA/nccl/issues/2198",
        remedy: Remedy::WorkedAround,
    },
];

impl Defect {
    /// Whether a version has it.
    #[must_use]
    pub fn affects(&self, version: Version) -> bool {
        version >= self.from && self.fixed.is_none_or(|fixed| version < fixed)
    }
}

/// The defects of a version that lead to this remedy and that nobody allowed.
#[must_use = "an iterator does nothing by itself"]
pub fn of<'a>(
    version: Version,
    remedy: Remedy,
    allowed: &'a [String],
) -> impl Iterator<Item = &'static Defect> + 'a {
    DEFECTS.iter().filter(move |defect| {
        defect.remedy == remedy
            && defect.affects(version)
            && allowed.iter().all(|name| name != defect.name)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::current(Version::new(2, 32, 3), true)]
    #[case::first_good(Version::new(2, 30, 7), true)]
    #[case::race(Version::new(2, 30, 4), false)]
    #[case::race_begins(Version::new(2, 28, 9), false)]
    #[case::before_the_race(Version::new(2, 27, 7), true)]
    #[case::old(Version::new(2, 26, 2), false)]
    fn symmetric_memory_is_refused_by_version(#[case] version: Version, #[case] good: bool) {
        let found = of(version, Remedy::NoSymmetricMemory, &[]).next();
        assert_eq!(found.is_none(), good, "{found:?}");
    }

    #[test]
    fn a_defect_can_be_allowed_by_name() {
        let version = Version::new(2, 28, 9);
        let allowed = ["launch-race".to_owned()];
        assert_eq!(of(version, Remedy::NoSymmetricMemory, &allowed).count(), 0);
        assert_eq!(of(version, Remedy::NoSymmetricMemory, &[]).count(), 1);
    }

    #[test]
    fn every_row_has_a_link_and_its_own_name() {
        for (index, defect) in DEFECTS.iter().enumerate() {
            assert!(defect.link.starts_with("https://"));
            assert!(defect.fixed.is_none_or(|fixed| fixed > defect.from));
            assert!(
                DEFECTS[..index]
                    .iter()
                    .all(|other| other.name != defect.name)
            );
        }
    }
}
