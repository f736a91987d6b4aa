//! What each rank does: it reads its environment, meets the others, and leaves.

use std::error::Error;
use std::thread;
use std::time::Duration;

use collectives_core::env::World;
use collectives_core::error::with_causes;

/// Set in a process that is a rank.
pub(crate) const RANK: &str = "COLLECTIVES_TEST_NETWORKS";

/// How long a rank waits for the others.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long a rank may live, whatever happens.
const LIFE: Duration = Duration::from_secs(90);

/// Runs this rank and ends the process, or returns where the process is no rank.
pub(crate) fn dispatch() {
    if std::env::var_os(RANK).is_none() {
        return;
    }
    thread::spawn(|| {
        thread::sleep(LIFE);
        std::process::abort();
    });
    let Err(error) = run() else {
        std::process::exit(0)
    };
    eprintln!("{}", with_causes(&*error));
    std::process::exit(1);
}

fn run() -> Result<(), Box<dyn Error>> {
    let world = World::from_env()?;
    let end = world.bootstrap(DEADLINE)?;
    let own = world.rank.0.to_le_bytes();
    let all = end.all_gather("met", &own, DEADLINE)?;
    let expected = (0..u32::try_from(world.world_size)?).map(|rank| rank.to_le_bytes().to_vec());
    if all != expected.collect::<Vec<_>>() {
        return Err(format!("the ranks that met are {all:?}").into());
    }
    Ok(())
}
