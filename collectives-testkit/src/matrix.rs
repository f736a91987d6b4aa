//! The proof of the kit: every case fails with its planted bug, and unrelated cases still pass.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::case::{Case, Failure};
use crate::harness::Harness;
use crate::planted::Planted;
use crate::report::{Entry, Report};
use crate::runner::missing;
use crate::suites;
use crate::world::{Limits, Worlds};

/// Cases that every bug must leave alone, apart from those it touches.
const CONTROLS: &[(&str, &str)] = &[
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
    pub case: &'static Case,
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
}

/// Runs every case whose name contains `filter` under its bug.
#[must_use]
pub fn run(harness: &Arc<dyn Harness>, filter: &str) -> Vec<Row> {
    let cases: Vec<_> = suites::cases()
        .filter(|(suite, case)| case.name(suite).contains(filter))
        .filter(|(_, case)| missing(&**harness, case).is_none())
        .collect();
    let worlds = Worlds::new(Arc::clone(harness), Limits::SHORT);
    let next = Mutex::new(cases.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    let workers = if harness.is_exclusive() {
        1
    } else {
        thread::available_parallelism().map_or(2, usize::from).min(8) + 1
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((index, &(suite, case))) = taken else {
                        return;
                    };
                    let row = prove(&worlds, suite, case);
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.push((index, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn prove(worlds: &Worlds, suite: &'static str, case: &'static Case) -> Row {
    let mut row = Row {
        suite,
        case,
        caught: None,
        disturbed: Vec::new(),
    };
    let Some(bug) = case.bug else {
        return row;
    };
    row.caught = worlds.run(case, Some(bug)).err();
    for (suite, control) in suites::cases() {
        let is_control = CONTROLS.contains(&(suite, control.id));
        if is_control
            && control.id != case.id
            && !bug.touches().contains(&control.id)
            && missing(&**worlds.harness(), control).is_none()
            && let Err(failure) = worlds.run(control, Some(bug))
        {
            row.disturbed.push(format!("{}: {failure}", control.name(suite)));
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

/// The `main` of a matrix: prints it and fails unless every case is proven.
///
/// An argument that is no option keeps only the cases whose names contain it; `--verbose` shows how
/// bugs were caught.
#[must_use]
pub fn main(harness: Arc<dyn Harness>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = "every_case_catches_its_planted_bug";
    if arguments.iter().any(|argument| argument == "--list") {
        // What runners ask for before they run anything.
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filter = arguments
        .iter()
        .find(|argument| !argument.starts_with("--") && *argument != name)
        .map_or("", String::as_str);
    quiet_panics();
    let rows = run(&harness, filter);
    print!("{}", table(&rows));
    if arguments.iter().any(|argument| argument == "--verbose") {
        for row in &rows {
            if let Some(failure) = &row.caught {
                println!("{}::{}: {failure}\n", row.suite, row.case.id);
            }
        }
    }
    let proven = rows.iter().filter(|row| row.is_proven()).count();
    println!("{proven} of {} cases are proven", rows.len());
    let mut report = Report::new(harness.name());
    for row in &rows {
        let mut entry = Entry::new(row.suite, row.case);
        entry.caught = Some(row.caught.is_some());
        report.note(entry);
    }
    if let Err(error) = report.write_where_asked() {
        eprintln!("the report could not be written: {error}");
        return ExitCode::FAILURE;
    }
    if proven == rows.len() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
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
