//! Which of the launchers at work speaks for this process.

use super::vars::{Faults, Vars};
use super::{LAST, LAUNCHERS, Launcher, World};

/// The first launcher that is at work, if it is complete, or the first complete one that fits it; the
/// error names all that are at work.
pub(super) fn world(vars: &mut Vars) -> Result<World, String> {
    let at_work = LAUNCHERS
        .into_iter()
        .filter(|launcher| launcher.is_at_work(vars));
    let at_work: Vec<_> = at_work.collect();
    let (first, others) = at_work.split_first().ok_or_else(none_at_work)?;
    let faults = match first.world(vars) {
        Ok(world) => return Ok(world),
        Err(faults) => faults,
    };
    let mut texts = vec![first.faulty(&faults)];
    let mut complete = false;
    for other in others {
        match other.world(vars) {
            Ok(world) if faults.are_gaps() => {
                let Some(difference) = other.differs_from(first, &world, vars) else {
                    return Ok(world);
                };
                texts.push(format!(
                    "that of {} is complete, and {difference}",
                    other.name
                ));
                complete = true;
            }
            Ok(_) => texts.push(format!("that of {} is complete", other.name)),
            Err(faults) => texts.push(other.faulty(&faults)),
        }
    }
    if faults.are_gaps() && !complete {
        match LAST.world(vars) {
            Ok(world) => return Ok(world),
            Err(faults) if faults.are_gaps() => {}
            Err(faults) => texts.push(LAST.faulty(&faults)),
        }
    }
    Err(format!("the environment of {}", texts.join("; ")))
}

fn none_at_work() -> String {
    let looked =
        LAUNCHERS.map(|launcher| format!("{} for {}", launcher.looked_for(), launcher.name));
    let looked = looked.join("; ");
    format!("no launcher started this process: none of its variables is set (looked for {looked})")
}

impl Launcher {
    fn is_at_work(&self, vars: &Vars) -> bool {
        self.marks.iter().any(|name| vars.has(name))
    }

    fn world(&self, vars: &mut Vars) -> Result<World, Faults> {
        let world = (self.read)(vars);
        let faults = vars.take_faults();
        world.filter(|_| faults.is_empty()).ok_or(faults)
    }

    fn faulty(&self, faults: &Faults) -> String {
        format!("{}: {faults} (looked for {})", self.name, self.looked_for())
    }

    fn looked_for(&self) -> String {
        let all = self.marks.iter().chain(self.beside);
        all.copied().collect::<Vec<_>>().join(", ")
    }

    /// What this launcher, whose world this is, and an incomplete one say of the same thing.
    fn differs_from(&self, other: &Self, world: &World, vars: &Vars) -> Option<String> {
        let same = [
            (self.rank, other.rank, world.rank.to_string()),
            (
                self.world_size,
                other.world_size,
                world.world_size.to_string(),
            ),
        ];
        same.into_iter().find_map(|(own, theirs, value)| {
            let text = vars.text(theirs)?;
            (text.trim() != value).then(|| format!("says {own}={value} where {theirs}={text}"))
        })
    }
}
