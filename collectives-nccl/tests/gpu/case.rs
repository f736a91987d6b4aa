//! A case, and whether it can run here.

use collectives_nccl::device::CudaDevice;
use collectives_nccl::known_bad::{self, Remedy};
use collectives_nccl::options::Options;
use collectives_nccl::setup::{check_platform, library_version};

use crate::Outcome;
use crate::rank::Ctx;

/// A case, its name and what it needs.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Ctx) -> Outcome,
    symmetric: bool,
    /// GPUs that it needs.
    gpus: usize,
}

/// What there is.
pub(crate) struct Here {
    gpus: usize,
    /// Why nothing can run.
    nothing: Option<String>,
    /// Why this version has no symmetric memory.
    asymmetric: Option<String>,
    /// Why ranks cannot share a GPU with this version.
    unshared: Option<String>,
}

/// What is missing for a case.
pub(crate) enum Missing {
    OfMachine(String),
    /// This version of NCCL does not have it, or not rightly.
    OfVersion(String),
    /// The machine has too few of them.
    Gpus(String),
}

impl Case {
    /// A case for every version.
    pub(crate) const fn plain(name: &'static str, run: fn(&mut Ctx) -> Outcome) -> Self {
        Self {
            name,
            run,
            symmetric: false,
            gpus: 1,
        }
    }

    /// A case on symmetric memory.
    pub(crate) const fn symmetric(name: &'static str, run: fn(&mut Ctx) -> Outcome) -> Self {
        Self {
            name,
            run,
            symmetric: true,
            gpus: 1,
        }
    }

    /// The case where there are at least so many GPUs.
    pub(crate) const fn on(self, gpus: usize) -> Self {
        Self { gpus, ..self }
    }
}

impl Here {
    pub(crate) fn look() -> Self {
        let nothing = check_platform().err().map(|error| error.kind().to_string());
        let lacks = |remedy| {
            let version = library_version().ok()?;
            let allow = Options::from_env().allow;
            let defect = known_bad::of(version, remedy, &allow).next()?;
            Some(format!("NCCL {version}: {}", defect.what))
        };
        Self {
            gpus: CudaDevice::count(),
            nothing,
            asymmetric: lacks(Remedy::NoSymmetricMemory),
            unshared: lacks(Remedy::OneRankPerGpu),
        }
    }

    pub(crate) fn missing(&self, case: &Case, ranks: usize) -> Option<Missing> {
        let of_machine = self.nothing.clone().map(Missing::OfMachine);
        let asymmetric = self.asymmetric.clone().filter(|_| case.symmetric);
        let unshared = self.unshared.clone().filter(|_| ranks > self.gpus);
        let of_version = asymmetric.or(unshared).map(Missing::OfVersion);
        let few = (self.gpus < case.gpus)
            .then(|| Missing::Gpus(format!("{} GPUs of {}", self.gpus, case.gpus)));
        of_machine.or(of_version).or(few)
    }
}
