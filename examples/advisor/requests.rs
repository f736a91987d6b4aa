//! The requests of a workload, as events of a trace.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::replay::in_pieces;
use collectives_alloc::trace::{self, Call, Event, HEADER, Outcome};
use csv::StringRecord;

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
    if header.trim_end() == HEADER {
        let whole = header.as_bytes().chain(input);
        let events = trace::read(BufReader::new(whole))?;
        return Ok(Requests { events });
    }
    table(&header, input, options)
}

/// Rows of sizes.
fn table(header: &str, input: impl BufRead, options: &Options) -> Result<Requests, Box<dyn Error>> {
    let names: Vec<_> = header.trim_end().split(',').map(str::trim).collect();
    let column = |name: &str| names.iter().position(|known| *known == name);
    let (size, unit) = match (column("bytes"), column("tokens")) {
        (Some(bytes), _) => (bytes, 1),
        (None, Some(tokens)) => (tokens, options.dtype.bytes(options.hidden)?),
        (None, None) => {
            let text = format!("its header is neither `{HEADER}` nor has it `bytes` or `tokens`");
            return Err(text.into());
        }
    };
    let kind = column("kind");
    let mut requests = Requests::default();
    let mut captures = 0;
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader.has_headers(false).trim(csv::Trim::All);
    for (index, row) in reader.from_reader(input).records().enumerate() {
        let at = |what: String| format!("line {}: {what}", index + 2);
        let row = row.map_err(|error| at(error.to_string()))?;
        let bytes = bytes(&row, size, unit).map_err(at)?;
        match kind.and_then(|kind| row.get(kind)) {
            None | Some("" | "prefill") => requests.push(bytes, None),
            Some("decode") => {
                // Warmed up eagerly, then captured.
                requests.push(bytes, None);
                requests.push(bytes, Some(captures));
                captures += 1;
            }
            Some(other) => return Err(at(format!("`{other}` is no `kind`")).into()),
        }
    }
    Ok(requests)
}

fn bytes(row: &StringRecord, column: usize, unit: usize) -> Result<usize, String> {
    let text = row.get(column).unwrap_or("");
    let number = text.parse::<usize>().ok().filter(|&number| number > 0);
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("`{text}` is no size"))
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
        assert_eq!(read("bytes\n1\n0\n").unwrap_err(), "line 3: `0` is no size");
        let odd = read("bytes,kind\n1,encode\n").unwrap_err();
        assert_eq!(odd, "line 2: `encode` is no `kind`");
    }
}
