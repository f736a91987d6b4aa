//! A rank that ends the process ends no case well.

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;

use std::env;
use std::process::{self, Command, ExitCode};
use std::sync::Arc;

use collectives_testkit::case::{Case, Outcome};
use collectives_testkit::rig::Rig;
use collectives_testkit::world::{Limits, Worlds};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the process whose rank ends it.
const ENDS: &str = "COLLECTIVES_TEST_ENDS";

const CASE: Case = Case::new("I46", "it exits in peace", exits);

fn exits(rig: &mut Rig<'_>) -> Outcome {
    rig.meet()?;
    if rig.rank() == 1 {
        process::exit(0);
    }
    rig.meet()
}

fn main() -> ExitCode {
    if env::var_os(ENDS).is_some() {
        let worlds = Worlds::new(Arc::new(host::Host), Limits::SHORT);
        let _never = worlds.run(&CASE, None);
        return ExitCode::SUCCESS;
    }
    let trial = Trial::test(
        "a_rank_that_exits_fails_the_process_and_its_case_is_named",
        named,
    );
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn named() -> Result<(), Failed> {
    let output = Command::new(env::current_exe()?).env(ENDS, "1").output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !text.contains("I46 (it exits in peace)") {
        return Err(format!("{}: {text}", output.status).into());
    }
    Ok(())
}
