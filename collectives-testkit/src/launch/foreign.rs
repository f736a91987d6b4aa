//! Variables of a launcher that started the parent: its ranks are other ranks.

use std::ffi::OsStr;

/// What those variables begin with.
const BEGINNINGS: [&str; 9] = [
    "TORCHELASTIC_",
    "COLLECTIVES_STORE_",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "PMIX_",
    "PMI_",
    "MPI_LOCAL",
    "HYDI_",
    "SLURM_STEP_",
];

const NAMES: [&str; 6] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Whether a variable says who a rank is, or where ranks meet.
pub(super) fn is_of_launcher(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    let begins = |beginning: &&str| bytes.starts_with(beginning.as_bytes());
    BEGINNINGS.iter().any(begins) || NAMES.iter().any(|known| name == *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_launchers_variables_are_taken_away() {
        for name in ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MASTER_ADDR"] {
            assert!(is_of_launcher(OsStr::new(name)), "{name}");
        }
        // What configures an MPI stays.
        for name in ["PATH", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_btl", "RANKS"] {
            assert!(!is_of_launcher(OsStr::new(name)), "{name}");
        }
    }
}
