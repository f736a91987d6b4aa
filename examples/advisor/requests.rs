//! The requests of a workload, as events of a trace.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::replay::in_pieces;
use collectives_alloc::trace::{self, Call, Event, HEADER, Outcome};
use collectives_examples::rows::{self, Kind, Row, RowError, Unit};

use crate::options::Options;

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) events: Vec<Event>,
}

impl Requests {
    /// The leases that these are with the piece of the configuration.
    pub(crate) fn leased(&self, options: &Options) -> Self {
        let mut config = ScratchConfig::default();
        (config.cap, config.piece) = (options.cap, options.piece);
        Self {
            events: in_pieces(&self.events, &config.options()),
        }
    }

    /// Bytes of each request, in order, as far as they are staged.
    pub(crate) fn sizes(&self, cap: usize) -> Vec<usize> {
        let size = |event: &Event| match event.call {
            Call::Acquire { bytes, .. } if bytes <= cap => Some(bytes),
            _ => None,
        };
        self.events.iter().filter_map(size).collect()
    }

    /// Whether anything was captured.
    pub(crate) fn captures(&self) -> bool {
        let captured = |event: &Event| matches!(event.call, Call::Acquire { capture, .. } if capture.is_some());
        self.events.iter().any(captured)
    }

    /// The requests of a table, each a lease that ends before the next begins.
    fn of(rows: &[Row]) -> Self {
        let mut requests = Self::default();
        let mut captures = 0;
        for row in rows {
            // What is captured was warmed up eagerly.
            requests.push(row.bytes, None);
            if row.kind == Kind::Decode {
                requests.push(row.bytes, Some(captures));
                captures += 1;
            }
        }
        requests
    }

    /// Adds a lease that ends before the next begins.
    fn push(&mut self, bytes: usize, capture: Option<u32>) {
        let sequence = self.events.len() as u64;
        let call = Call::Acquire {
            bytes,
            stream: 0,
            capture,
            outcome: Outcome::Hit,
            generation: None,
        };
        self.events.push(Event::new(sequence, call));
        self.events.push(Event::new(sequence, Call::Release));
    }
}

pub(crate) fn load(options: &Options) -> Result<Requests, Box<dyn Error>> {
    let name = options.trace.display();
    let file = File::open(&options.trace).map_err(|error| format!("{name}: {error}"))?;
    let requests = parse(BufReader::new(file), options);
    let requests = requests.map_err(|error| format!("{name}: {error}"))?;
    let requests = requests.leased(options);
    if requests.sizes(usize::MAX).is_empty() {
        return Err(format!("{name}: there are no requests").into());
    }
    Ok(requests)
}

fn parse(mut input: impl BufRead, options: &Options) -> Result<Requests, Box<dyn Error>> {
    let mut header = String::new();
    input.read_line(&mut header)?;
    // Some programs begin a text with a byte order mark.
    let header = header.trim_start_matches('\u{feff}');
    let whole = BufReader::new(header.as_bytes().chain(input));
    if header.trim_end() == HEADER {
        let events = trace::read(whole)?;
        return Ok(Requests { events });
    }
    let unit = |name, bytes| Unit { name, bytes };
    let tokens = options.dtype.bytes(options.hidden)?;
    let rows = rows::read(whole, &[unit("bytes", 1), unit("tokens", tokens)]);
    let rows = rows.map_err(|error| match error {
        RowError::NoColumn { .. } => format!("{error}, nor is it `{HEADER}`"),
        other => other.to_string(),
    })?;
    Ok(Requests::of(&rows))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn read(text: &str) -> Result<Requests, String> {
        let options = Options::parse_from(["advisor", "x.csv"]);
        parse(text.as_bytes(), &options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_recorded_trace_is_read_as_it_is() {
        let text = format!("{HEADER}\n1,acquire,4096,0,0,hit,1\n1,release,,,,,\n");
        let requests = read(&text).unwrap();
        assert_eq!(requests.sizes(usize::MAX), [4096]);
        assert!(requests.captures());
    }

    #[test]
    fn a_table_of_bytes_or_tokens_will_do() {
        assert_eq!(read("bytes\n5\n7\n").unwrap().sizes(6), [5]);
        let tokens = read("kind, tokens\ndecode,2\nprefill,3\n").unwrap();
        assert_eq!(tokens.sizes(usize::MAX), [20_480, 20_480, 30_720]);
        assert!(tokens.captures());
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        assert!(read("sizes\n1\n").unwrap_err().contains("`bytes`"));
        let named = read("bytes\n\n1\n\n0\n").unwrap_err();
        assert!(named.starts_with("line 5, `bytes`: `0`"), "{named}");
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        assert_eq!(read("\u{feff}bytes\n5\n").unwrap().sizes(9), [5]);
        let text = format!("\u{feff}{HEADER}\n1,acquire,4096,0,0,hit,1\n");
        assert_eq!(read(&text).unwrap().sizes(usize::MAX), [4096]);
    }
}
