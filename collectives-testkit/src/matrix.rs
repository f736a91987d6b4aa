//! The proof of the kit: every case fails with its planted bug, and unrelated cases still pass.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use libtest_mimic::{Arguments, Trial};

use crate::case::{Case, Failure, Outcome};
use crate::harness::Harness;
use crate::planted::Planted;
use crate::report::{Entry, Proof, Report};
use crate::runner::missing;
use crate::suites;
use crate::world::{Limits, Worlds};

/// Cases that every bug must leave alone, apart from those it touches: suite and id.
pub const CONTROLS: &[(&str, &str)] = &[
    ("communicator", "D2"),
    ("scratch", "I5"),
    ("failure", "D6"),
    ("graph_replay", "B3"),
    ("misuse", "I47"),
];

/// What came of one case under its bug.
#[derive(Clone, Debug)]
pub struct Row {
    /// The suite.
    pub suite: &'static str,
    /// The case.
    pub case: Case,
    /// How it failed with the bug, which it must.
    pub caught: Option<Failure>,
    /// Controls that failed and should not have.
    pub disturbed: Vec<String>,
}

impl Row {
    /// Whether the case is proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.case.bug.is_some() && self.caught.is_some() && self.disturbed.is_empty()
    }

    /// The row as the outcome of a test.
    ///
    /// # Errors
    ///
    /// The row as text, if the case is not proven.
    pub fn verdict(&self) -> Outcome {
        match self.is_proven() {
            true => Ok(()),
            false => Err(Failure(table(std::slice::from_ref(self)))),
        }
    }
}

/// Runs a case under its bug, and then every control that the bug does not touch.
#[must_use]
pub fn prove(worlds: &Worlds, suite: &'static str, case: Case) -> Row {
    let mut row = Row {
        suite,
        case,
        caught: None,
        disturbed: Vec::new(),
    };
    let Some(bug) = case.bug else {
        return row;
    };
    row.caught = worlds.run(&case, Some(bug)).err();
    for (suite, control) in suites::cases() {
        let is_control = CONTROLS.contains(&(suite, control.id));
        if is_control
            && control.id != case.id
            && !bug.touches().contains(&control.id)
            && missing(&**worlds.harness(), control).is_none()
            && let Err(failure) = worlds.run(control, Some(bug))
        {
            row.disturbed
                .push(format!("{}: {failure}", control.name(suite)));
        }
    }
    row
}

/// The matrix as text.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let bug = row.case.bug.map_or("(none)", Planted::name);
        let caught = match (&row.caught, row.case.bug) {
            (_, None) => "NO BUG",
            (Some(_), _) => "caught",
            (None, _) => "SURVIVED",
        };
        let spared = if row.disturbed.is_empty() {
            "unrelated pass"
        } else {
            "UNRELATED FAIL"
        };
        let name = format!("{}::{}", row.suite, row.case.id);
        let _written = writeln!(text, "{name:<24} {bug:<24} {caught:<9} {spared}");
        for disturbed in &row.disturbed {
            let _written = writeln!(text, "    {}", disturbed.replace('\n', "\n    "));
        }
    }
    text
}

/// The `main` of a matrix: one test per case, which runs it under its bug and the controls beside it;
/// the matrix of what was run is printed at the end.
#[must_use]
pub fn main(harness: Arc<dyn Harness>) -> ExitCode {
    #[cfg(target_os = "linux")]
    crate::world::processes::dispatch(&harness);
    let mut arguments = Arguments::from_args();
    if harness.is_exclusive() {
        arguments.test_threads = Some(1);
    }
    if !arguments.list {
        quiet_panics();
    }
    let worlds = Arc::new(Worlds::new(Arc::clone(&harness), Limits::SHORT));
    let rows = Arc::new(Mutex::new(Vec::new()));
    let trials = suites::cases()
        .enumerate()
        .map(|(index, (suite, case))| trial(&worlds, &rows, index, suite, case))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut rows = std::mem::take(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner));
    if arguments.list || rows.is_empty() {
        return conclusion.exit_code();
    }
    rows.sort_by_key(|(index, _)| *index);
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    let proven = rows.iter().filter(|row| row.is_proven()).count();
    println!(
        "{}\n{proven} of {} cases are proven",
        table(&rows),
        rows.len()
    );
    let mut report = Report::new(harness.name());
    for row in &rows {
        let mut entry = Entry::new(row.suite, &row.case);
        entry.proof = Some(Proof {
            caught: row.caught.as_ref().map(|failure| failure.0.clone()),
            disturbed: row.disturbed.clone(),
        });
        report.note(entry);
    }
    if let Err(error) = report.write_where_asked() {
        eprintln!("the report could not be written: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

type Rows = Arc<Mutex<Vec<(usize, Row)>>>;

fn trial(
    worlds: &Arc<Worlds>,
    rows: &Rows,
    index: usize,
    suite: &'static str,
    case: &'static Case,
) -> Trial {
    let bug = case.bug.map_or("nothing", Planted::name);
    let name = format!("{}::catches::{bug}", case.name(suite));
    let lacks = missing(&**worlds.harness(), case);
    let (worlds, rows) = (Arc::clone(worlds), Arc::clone(rows));
    let prove = move || {
        let row = prove(&worlds, suite, *case);
        let verdict = row.verdict();
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.push((index, row));
        verdict.map_err(|Failure(text)| text.into())
    };
    match lacks {
        None => Trial::test(name, prove),
        Some((capability, reason)) => Trial::test(name, prove)
            .with_ignored_flag(true)
            .with_kind(format!("skip: {capability}: {reason}")),
    }
}

/// Planted bugs make ranks panic; their text is in the outcome already.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        if !thread.name().is_some_and(|name| name.starts_with("kit-")) {
            usual(panic);
        }
    }));
}
