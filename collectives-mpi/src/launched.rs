//! Whether the launcher belongs to this MPI: another's starts worlds of one rank, without a word.

use std::env;

use collectives_core::error::{Error, Result};

/// What launchers say about the size of the world.
const SIZES: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "Hydra, which is MPICH's mpiexec,"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
];

/// Checks that MPI sees as many ranks as the launcher started.
pub(crate) fn check(world_size: usize, version: &str) -> Result<()> {
    let said = SIZES.into_iter().filter_map(|(name, launcher)| {
        let size: usize = env::var(name).ok()?.trim().parse().ok()?;
        Some((name, launcher, size))
    });
    compare(world_size, version, said)
}

fn compare<'a>(
    world_size: usize,
    version: &str,
    said: impl IntoIterator<Item = (&'a str, &'a str, usize)>,
) -> Result<()> {
    let mut said = said.into_iter();
    // An MPI of one rank is what every other MPI's launcher looks like from inside.
    match said.find(|&(_, _, size)| world_size == 1 && size > 1) {
        None => Ok(()),
        Some((name, launcher, size)) => Err(Error::config(format!(
            "{launcher} started {size} ranks ({name}={size}), each of which is alone to this \
             program's MPI ({version}): start it with the launcher of the MPI it was built with, or \
             build it with the launcher's (`MPICC`, and a target directory of its own)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_of_another_mpi_is_named() {
        let said = [("PMI_SIZE", "Hydra", 4)];
        let error = compare(1, "Open MPI v4", said).unwrap_err().to_string();
        for part in ["Hydra", "PMI_SIZE=4", "Open MPI v4", "MPICC"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(compare(4, "Open MPI v4", said).is_ok());
        assert!(compare(1, "Open MPI v4", [("PMI_SIZE", "Hydra", 1)]).is_ok());
        assert!(compare(1, "Open MPI v4", []).is_ok());
    }
}
