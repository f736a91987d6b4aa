//! Whether what a launcher says of this rank fits together.

use super::World;
use super::vars::Vars;

/// Notes what does not fit; `names` are the variables of rank, world size, and the local two.
pub(super) fn check(world: &World, names: [&str; 4], vars: &mut Vars) {
    let [rank_name, size_name, local_name, local_size_name] = names;
    let (rank, world_size) = (world.rank, world.world_size);
    if rank.index() >= world_size {
        vars.fault(format!(
            "{rank_name}={rank} is outside {size_name}={world_size}"
        ));
    }
    let (local, local_size) = (world.local_rank, world.local_world_size);
    match local_size {
        Some(size) if local >= size => {
            vars.fault(format!(
                "{local_name}={local} is outside {local_size_name}={size}"
            ));
        }
        Some(size) if size > world_size => {
            vars.fault(format!(
                "{local_size_name}={size} exceeds {size_name}={world_size}"
            ));
        }
        None if local >= world_size => {
            vars.fault(format!(
                "{local_name}={local} is outside {size_name}={world_size}"
            ));
        }
        _ => {}
    }
}
