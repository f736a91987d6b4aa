//! A stream has one owner, so that `&mut` means nobody else enqueues.

use collectives_core::stream::Stream;

fn duplicates(stream: &Stream) -> Stream {
    stream.clone()
}

fn main() {}
