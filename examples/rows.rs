//! Tables of requests, read alike by all programs.
//!
//! A table has a header with a column of sizes and optionally a column `kind`, `prefill` (also where it
//! is empty) or `decode`. Spaces around fields, blank lines, other columns and a byte order mark are
//! skipped.
//!
//! Where sizes are tokens, published traces of servers will do as they are: CSV with a column
//! `ContextTokens` (Azure) or `Request tokens` (BurstGPT), and lines of JSON with `input_length` (Mooncake).
//! Each of their requests is a prefill of its prompt; one without a token of prompt is left out. How many
//! tokens it generated says nothing of the batches that it was decoded in.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};

use csv::{Position, ReaderBuilder, Trim};

/// The column that says what a request is for.
const KIND: &str = "kind";

/// The unit that published traces have, and what they call it.
const TOKENS: &str = "tokens";
const PUBLISHED: [&str; 2] = ["ContextTokens", "Request tokens"];
/// The same in lines of JSON.
const INPUT_LENGTH: &str = "input_length";

/// A column of sizes.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Its name in the header.
    pub name: &'static str,
    /// Bytes of one.
    pub bytes: usize,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Its size, in the unit of its column: one or more.
    pub count: usize,
    /// The same in bytes, at most half of what addresses can express.
    pub bytes: usize,
    /// What it is for.
    pub kind: Kind,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// It comes once.
    Prefill,
    /// It is captured.
    Decode,
}

/// What is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowError {
    /// No column has sizes.
    NoColumn {
        /// The names it may have.
        wanted: Vec<&'static str>,
    },
    /// There is a header and nothing else.
    NoRows,
    /// A field of a row cannot be what it says.
    Field {
        /// The line of the file, counted from one.
        line: u64,
        /// The column.
        column: &'static str,
        /// What it says.
        text: String,
        /// Why it cannot be.
        why: &'static str,
    },
    /// A row is none.
    Csv {
        /// The line of the file.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// It cannot be read, or is no text.
    Unreadable {
        /// Why.
        what: String,
    },
}

/// Reads a table. Sizes are in the first of the units that has a column; those of a published trace
/// are in `tokens`.
///
/// # Errors
///
/// The first thing that is wrong with it.
pub fn read(mut input: impl Read, units: &[Unit]) -> Result<Vec<Row>, RowError> {
    let mut text = String::new();
    input.read_to_string(&mut text)?;
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('{') {
        return published(json_rows(text, units));
    }
    let mut reader = ReaderBuilder::new()
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let header = reader
        .headers()
        .map_err(|error| no_csv(text, &error))?
        .clone();
    let column = |name: &str| header.iter().position(|known| known == name);
    let place = |unit: &Unit| column(unit.name).map(|at| (at, *unit));
    let of_server = || {
        let unit = *units.iter().find(|unit| unit.name == TOKENS)?;
        let place = |name| Some((column(name)?, Unit { name, ..unit }));
        PUBLISHED.into_iter().find_map(place)
    };
    let own = units.iter().find_map(place);
    let (size, unit) = own.or_else(of_server).ok_or_else(|| no_column(units))?;
    let kind = column(KIND);
    let rows = reader.records().map(|record| {
        let record = record.map_err(|error| no_csv(text, &error))?;
        let field = |at, column, why| RowError::Field {
            line: line_of(text, record.position()),
            column,
            text: record.get(at).unwrap_or("").to_owned(),
            why,
        };
        let said = record.get(size).unwrap_or("");
        let (count, bytes) = self::size(said, unit).map_err(|why| field(size, unit.name, why))?;
        let kind = kind.map_or(Ok(Kind::Prefill), |at| {
            let said = record.get(at).unwrap_or("");
            self::kind(said).map_err(|why| field(at, KIND, why))
        })?;
        Ok(Row { count, bytes, kind })
    });
    match own {
        Some(_) => some(rows.collect::<Result<_, _>>()?),
        None => published(rows),
    }
}

fn no_column(units: &[Unit]) -> RowError {
    let wanted = units.iter().map(|unit| unit.name).collect();
    RowError::NoColumn { wanted }
}

fn some(rows: Vec<Row>) -> Result<Vec<Row>, RowError> {
    match rows.is_empty() {
        true => Err(RowError::NoRows),
        false => Ok(rows),
    }
}

/// The requests of a published trace that have a prompt.
fn published(rows: impl IntoIterator<Item = Result<Row, RowError>>) -> Result<Vec<Row>, RowError> {
    let has_prompt = |row: &Result<Row, RowError>| !matches!(row, Err(RowError::Field { text, .. }) if text == "0");
    some(
        rows.into_iter()
            .filter(has_prompt)
            .collect::<Result<_, _>>()?,
    )
}

/// The requests of lines of JSON, an object each.
fn json_rows<'a>(
    text: &'a str,
    units: &'a [Unit],
) -> impl Iterator<Item = Result<Row, RowError>> + 'a {
    let lines = (1..)
        .zip(text.lines())
        .filter(|(_, said)| !said.trim().is_empty());
    lines.map(|(line, said)| {
        let unit = units.iter().find(|unit| unit.name == TOKENS);
        let unit = unit.ok_or_else(|| no_column(units))?;
        let object: serde_json::Value = serde_json::from_str(said).map_err(|error| {
            let what = format!("it is no JSON: {error}");
            RowError::Csv { line, what }
        })?;
        let said = object
            .get(INPUT_LENGTH)
            .map_or(String::new(), ToString::to_string);
        let (count, bytes) = size(&said, *unit).map_err(|why| RowError::Field {
            line,
            column: INPUT_LENGTH,
            text: said,
            why,
        })?;
        let kind = Kind::Prefill;
        Ok(Row { count, bytes, kind })
    })
}

/// A size in its unit and in bytes, or why it is none.
fn size(said: &str, unit: Unit) -> Result<(usize, usize), &'static str> {
    const TOO_LARGE: &str = "it takes more bytes than there are addresses";
    let is_number = !said.is_empty() && said.bytes().all(|digit| digit.is_ascii_digit());
    let count: usize = match said.parse() {
        Ok(0) => return Err("a request has one or more"),
        Ok(count) => count,
        Err(_) if is_number => return Err(TOO_LARGE),
        Err(_) => return Err("it is no whole number"),
    };
    let bytes = count.checked_mul(unit.bytes);
    let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
    Ok((count, bytes.ok_or(TOO_LARGE)?))
}

fn kind(said: &str) -> Result<Kind, &'static str> {
    match said {
        "" | "prefill" => Ok(Kind::Prefill),
        "decode" => Ok(Kind::Decode),
        _ => Err("it is neither `prefill` nor `decode`"),
    }
}

/// The line of a record, which begins behind the blank lines before it.
fn line_of(text: &str, position: Option<&Position>) -> u64 {
    let start = position.map_or(0, Position::byte);
    let start = usize::try_from(start).unwrap_or(0).min(text.len());
    let (before, rest) = text.as_bytes().split_at(start);
    let blank = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let breaks = before.iter().chain(blank).filter(|byte| **byte == b'\n');
    breaks.count() as u64 + 1
}

fn no_csv(text: &str, error: &csv::Error) -> RowError {
    let line = line_of(text, error.position());
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("there are {len} fields, and {expected_len} in the header"),
        _ => error.to_string(),
    };
    RowError::Csv { line, what }
}

impl From<io::Error> for RowError {
    fn from(error: io::Error) -> Self {
        Self::Unreadable {
            what: error.to_string(),
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoColumn { wanted } => {
                let named: Vec<_> = wanted.iter().map(|name| format!("`{name}`")).collect();
                write!(f, "the header has no column {}", named.join(" or "))
            }
            Self::NoRows => f.write_str("there are no requests"),
            Self::Field {
                line,
                column,
                text,
                why,
            } => write!(f, "line {line}, `{column}`: `{text}`: {why}"),
            Self::Csv { line, what } => write!(f, "line {line}: {what}"),
            Self::Unreadable { what } => f.write_str(what),
        }
    }
}

impl Error for RowError {}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_TOKENS: Unit = Unit {
        name: "tokens",
        bytes: 1 << 10,
    };
    const BYTES: Unit = Unit {
        name: "bytes",
        bytes: 1,
    };

    fn tokens(text: &str) -> Result<Vec<(usize, Kind)>, RowError> {
        let rows = read(text.as_bytes(), &[IN_TOKENS])?;
        Ok(rows.iter().map(|row| (row.count, row.kind)).collect())
    }

    #[test]
    fn spaces_blank_lines_other_columns_and_a_byte_order_mark_do_not_matter() {
        let expected = [(5, Kind::Prefill), (7, Kind::Decode), (9, Kind::Prefill)];
        for text in [
            "tokens,kind\n5,\n7,decode\n9,prefill\n",
            "kind,tokens\n,5\ndecode,7\nprefill,9",
            " tokens , kind \n\n 5 , prefill\n\n\n7, decode \n9,",
            "\u{feff}tokens,kind\r\n5,prefill\r\n7,decode\r\n9,\r\n",
            "\"tokens\",at,\"kind\"\n5,x,\n7,y,decode\n9,z,\n",
        ] {
            assert_eq!(tokens(text).unwrap(), expected, "{text:?}");
        }
        assert_eq!(tokens("tokens\n5\n").unwrap(), [(5, Kind::Prefill)]);
    }

    #[test]
    fn published_traces_of_servers_are_prompts() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                     2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n";
        let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     5,ChatGPT,374,18,490,Conversation log\n45,ChatGPT,0,0,0,API log\n\
                     118,GPT-4,396,276,1361,API log\n";
        let mooncake = "{\"timestamp\": 0, \"input_length\": 374, \"output_length\": 500, \
                        \"hash_ids\": [0, 1]}\n\n{\"timestamp\": 3, \"input_length\": 396}\r\n";
        for text in [azure, burst, mooncake, &format!("\u{feff}{mooncake}")] {
            let expected = [(374, Kind::Prefill), (396, Kind::Prefill)];
            assert_eq!(tokens(text).unwrap(), expected, "{text}");
        }
        // A table of our own says zero by mistake.
        assert!(tokens("tokens\n0\n5\n").is_err());
    }

    #[test]
    fn what_is_wrong_in_a_published_trace_is_named_with_its_line() {
        let said = |text: &str| tokens(text).unwrap_err().to_string();
        let azure = said("TIMESTAMP,ContextTokens,GeneratedTokens\na,1,1\nb,many,1\n");
        assert_eq!(
            azure,
            "line 3, `ContextTokens`: `many`: it is no whole number"
        );
        let mooncake = said("{\"input_length\": 5}\n{\"input_length\": 1.5}\n");
        assert_eq!(
            mooncake,
            "line 2, `input_length`: `1.5`: it is no whole number"
        );
        let missing = said("{\"input_length\": 5}\n\n{\"output_length\": 5}\n");
        assert_eq!(missing, "line 3, `input_length`: ``: it is no whole number");
        let broken = said("{\"input_length\": 5}\n{\n");
        assert!(broken.starts_with("line 2: it is no JSON: "), "{broken}");
        assert_eq!(said("{\"input_length\": 0}\n"), "there are no requests");
        let other = read("{}".as_bytes(), &[BYTES]).unwrap_err();
        assert!(matches!(other, RowError::NoColumn { .. }), "{other}");
    }

    #[test]
    fn the_first_unit_that_has_a_column_counts() {
        let text = "tokens,bytes\n2,5\n";
        let bytes = |units: &[Unit]| read(text.as_bytes(), units).unwrap()[0].bytes;
        assert_eq!(bytes(&[BYTES, IN_TOKENS]), 5);
        assert_eq!(bytes(&[IN_TOKENS, BYTES]), 2048);
    }

    #[test]
    fn a_field_that_cannot_be_is_named_with_its_line() {
        for (said, why) in [
            ("0", "a request has one or more"),
            ("-1", "it is no whole number"),
            ("", "it is no whole number"),
            (
                "18446744073709551615",
                "it takes more bytes than there are addresses",
            ),
            (
                "18446744073709551616",
                "it takes more bytes than there are addresses",
            ),
            // Its bytes are 2^64 and would wrap to nothing.
            (
                "18014398509481984",
                "it takes more bytes than there are addresses",
            ),
            (
                "9007199254740992",
                "it takes more bytes than there are addresses",
            ),
        ] {
            let expected = RowError::Field {
                line: 5,
                column: "tokens",
                text: said.to_owned(),
                why,
            };
            let text = format!("at,tokens\n\n1,1\n\n2,{said}\n");
            assert_eq!(tokens(&text).unwrap_err(), expected);
            let of_windows = format!("\u{feff}{}", text.replace('\n', "\r\n"));
            assert_eq!(tokens(&of_windows).unwrap_err(), expected);
        }
        let most = tokens("tokens\n9007199254740991\n").unwrap();
        assert_eq!(most, [(9_007_199_254_740_991, Kind::Prefill)]);
        let odd = tokens("tokens,kind\n\n1,encode\n").unwrap_err();
        let said = "line 3, `kind`: `encode`: it is neither `prefill` nor `decode`";
        assert_eq!(odd.to_string(), said);
    }

    #[test]
    fn what_is_no_table_is_said() {
        let wanted = vec!["tokens"];
        assert_eq!(
            tokens("sizes\n1\n"),
            Err(RowError::NoColumn {
                wanted: wanted.clone()
            })
        );
        assert_eq!(tokens(""), Err(RowError::NoColumn { wanted }));
        assert_eq!(tokens("tokens\n\n"), Err(RowError::NoRows));
        let uneven = tokens("tokens\n1\n2,3\n").unwrap_err();
        assert!(
            matches!(uneven, RowError::Csv { line: 3, .. }),
            "{uneven:?}"
        );
    }
}
