//! What was run, and what came of it: a JSON and a Markdown file per backend.
//!
//! A runner may start one process per case, so each process adds what it knows to what the folder
//! already holds; an outcome of a case that was not run again stays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use serde::{Deserialize, Serialize};

use crate::case::{Case, Outcome};

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, with the text.
    Failed(String),
    /// The backend lacks what it needs, with the reason.
    Skipped(String),
    /// It was not asked for.
    NotRun,
}

impl Verdict {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(failure) => Self::Failed(failure.0.clone()),
        }
    }

    const fn is_weaker_than(&self, other: &Self) -> bool {
        matches!(self, Self::NotRun) && !matches!(other, Self::NotRun)
    }
}

/// What came of one case under its planted bug.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// How the case failed, which it must.
    pub caught: Option<String>,
    /// Unrelated cases that failed too, and how.
    pub disturbed: Vec<String>,
}

impl Proof {
    /// Whether the bug was caught, and disturbed no case that it does not touch.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.caught.is_some() && self.disturbed.is_empty()
    }

    fn words(&self) -> String {
        let Some(how) = &self.caught else {
            return "**no**".to_owned();
        };
        let how = format!("yes: {}", cell(how.lines().next().unwrap_or_default()));
        match self.disturbed.first() {
            None => how,
            Some(first) => format!("{how}; **unrelated cases fail**: {}", cell(first)),
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The suite.
    pub suite: String,
    /// The invariant or public report.
    pub id: String,
    /// The sentence.
    pub title: String,
    /// The planted bug it must catch.
    pub bug: Option<String>,
    /// What came of it with the bug, where the matrix was run.
    pub proof: Option<Proof>,
    /// What came of it without the bug.
    pub outcome: Verdict,
}

impl Entry {
    /// The line of a case that was not run.
    #[must_use]
    pub fn new(suite: &str, case: &Case) -> Self {
        Self {
            suite: suite.to_owned(),
            id: case.id.to_owned(),
            title: case.title.to_owned(),
            bug: case.bug.map(|bug| bug.name().to_owned()),
            proof: None,
            outcome: Verdict::NotRun,
        }
    }

    pub(crate) fn with(&self, outcome: Verdict) -> Self {
        Self {
            outcome,
            ..self.clone()
        }
    }

    fn key(&self) -> String {
        format!("{}/{}/{}", self.suite, self.id, self.title)
    }
}

/// The lines of one backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The backend.
    pub backend: String,
    /// By suite, id and title.
    pub entries: BTreeMap<String, Entry>,
}

impl Report {
    /// Without a line.
    #[must_use]
    pub fn new(backend: &str) -> Self {
        Self {
            backend: backend.to_owned(),
            entries: BTreeMap::new(),
        }
    }

    /// Adds a line, or replaces what was known of its case by what is known better.
    pub fn note(&mut self, entry: Entry) {
        let key = entry.key();
        let Some(known) = self.entries.get_mut(&key) else {
            self.entries.insert(key, entry);
            return;
        };
        let proof = entry.proof.clone().or(known.proof.take());
        if !entry.outcome.is_weaker_than(&known.outcome) {
            *known = entry;
        }
        known.proof = proof;
    }

    /// Writes to the folder that `COLLECTIVES_REPORT` names, if it does.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn write_where_asked(&self) -> io::Result<()> {
        match env::var_os("COLLECTIVES_REPORT") {
            Some(folder) => self.write(Path::new(&folder)),
            None => Ok(()),
        }
    }

    /// Adds this report to what the folder holds of the backend.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        // Every process writes parts of its own, so that none overwrites another's.
        let parts = folder.join("parts");
        fs::create_dir_all(&parts)?;
        let part = parts.join(format!("{}-{}.json", self.backend, process::id()));
        place(&part, &serde_json::to_string(self)?)?;
        let mut all = Self::new(&self.backend);
        let mut paths: Vec<PathBuf> = fs::read_dir(&parts)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "json")
            })
            .collect();
        paths.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok());
        for path in paths {
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            if let Ok(part) = serde_json::from_str::<Self>(&text)
                && part.backend == self.backend
            {
                part.entries.into_values().for_each(|entry| all.note(entry));
            }
        }
        let name = |extension| folder.join(format!("{}.{extension}", self.backend));
        place(&name("json"), &serde_json::to_string_pretty(&all)?)?;
        place(&name("md"), &all.markdown())
    }

    /// The report as a table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let count = |wanted: fn(&Verdict) -> bool| {
            let entries = self.entries.values();
            entries.filter(|entry| wanted(&entry.outcome)).count()
        };
        let mut ids: Vec<_> = self.entries.values().map(|entry| &entry.id).collect();
        ids.sort();
        ids.dedup();
        let proven = self
            .entries
            .values()
            .filter(|entry| entry.proof.as_ref().is_some_and(Proof::holds));
        let mut text = format!(
            "# Conformance of `{}`\n\n{} ids, {} cases: {} passed, {} failed, {} skipped, {} not \
             run. {} planted bugs caught.\n\n| id | case | planted bug | caught | outcome \
             |\n|---|---|---|---|---|\n",
            self.backend,
            ids.len(),
            self.entries.len(),
            count(|verdict| matches!(verdict, Verdict::Passed)),
            count(|verdict| matches!(verdict, Verdict::Failed(_))),
            count(|verdict| matches!(verdict, Verdict::Skipped(_))),
            count(|verdict| matches!(verdict, Verdict::NotRun)),
            proven.count(),
        );
        for entry in self.entries.values() {
            let caught = entry.proof.as_ref().map_or_else(String::new, Proof::words);
            let outcome = match &entry.outcome {
                Verdict::Passed => "passed".to_owned(),
                Verdict::Failed(why) => {
                    format!("**failed**: {}", cell(why))
                }
                Verdict::Skipped(why) => format!("skipped: {}", cell(why)),
                Verdict::NotRun => "not run".to_owned(),
            };
            let bug = entry.bug.as_deref().unwrap_or("");
            let _written = writeln!(
                text,
                "| {} | {}: {} | {bug} | {caught} | {outcome} |",
                entry.id,
                entry.suite,
                cell(&entry.title)
            );
        }
        text
    }
}

/// A text in one cell of a table.
fn cell(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

/// Writes a file whole or not at all.
fn place(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.draft", process::id()));
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}
