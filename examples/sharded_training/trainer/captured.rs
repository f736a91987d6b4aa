//! A whole step as one graph.

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::{Capture, Executable};
use collectives_core::stream::Stream;

use super::rank::Trainer;
use super::streams::{Site, Streams};
use crate::outcome::Calls;
use crate::precision::Compute;

/// A step that was captured, to be replayed on other samples.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: Executable,
    /// The calls of one replay.
    pub(crate) calls: Calls,
}

impl Captured {
    /// Captures a step, which does nothing yet.
    pub(crate) fn new<T: Compute>(
        trainer: &mut Trainer<'_, T>,
        streams: &mut Streams,
    ) -> Result<Self> {
        let device = trainer.device();
        let before = std::mem::take(&mut trainer.calls);
        let Streams {
            compute,
            gather,
            scatter,
        } = streams;
        let capture = Capture::begin(&*device, compute)?;
        trainer.step(&mut Site::Captured {
            capture: &capture,
            gather,
            scatter,
        })?;
        let graph = capture.end()?.instantiate()?;
        let calls = std::mem::replace(&mut trainer.calls, before);
        Ok(Self { graph, calls })
    }

    /// Replays the step, on the samples that were taken last.
    pub(crate) fn launch(&mut self, device: &dyn Device, stream: &Stream) -> Result<()> {
        self.graph.launch(device, stream)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use clap::Parser;
    use collectives_alloc::config::ScratchConfig;
    use collectives_core::buffer::Buffer;
    use collectives_core::collectives::Collectives;
    use collectives_core::communicator::Communicator;
    use collectives_host::world::HostWorld;

    use super::*;
    use crate::arithmetic::Arithmetic;
    use crate::data::Batch;
    use crate::layout::Layout;
    use crate::model;
    use crate::options::Options;

    /// No arithmetic, so that a step is its collectives and can be captured on the host.
    #[derive(Debug)]
    struct Idle(Buffer<f64>);

    impl Arithmetic<f32> for Idle {
        fn begin(&mut self, _: &Batch, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn narrow(&mut self, _: usize, _: &mut Buffer<f32>, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn forward(&mut self, _: usize, _: &Buffer<f32>, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn loss(&mut self, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn backward(
            &mut self,
            _: usize,
            _: &Buffer<f32>,
            _: &mut Buffer<f32>,
            _: &Stream,
        ) -> Result<()> {
            Ok(())
        }

        fn take(&mut self, _: usize, _: &Buffer<f32>, _: Option<usize>, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn fold(&mut self, _: usize, _: &Buffer<f32>, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn divide(&mut self, _: usize, _: usize, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn squares(&mut self, _: &[Range<usize>], _: &Stream) -> Result<()> {
            Ok(())
        }

        fn update(&mut self, _: &Stream) -> Result<()> {
            Ok(())
        }

        fn report(&self) -> Buffer<f64> {
            self.0.clone()
        }

        fn outputs(&self, _: &Stream) -> Result<Vec<f32>> {
            Ok(Vec::new())
        }
    }

    /// Captures a step beside an eager one, replays it, and gives the numbers that it adds up.
    fn replayed(way: &str) {
        let arguments = format!("sharded_training --hidden 13 --ranks 3 --capture {way}");
        let options = Options::try_parse_from(arguments.split_whitespace()).unwrap();
        let world = HostWorld::new(3).deadline(Duration::from_secs(20));
        let ranks = world.run(|comm| -> Result<()> {
            let comm: Box<dyn Communicator> = Box::new(comm);
            let on = Collectives::new(comm, ScratchConfig::default().build()?);
            let device = std::sync::Arc::clone(on.device());
            let mut streams = Streams::new(&*device)?;
            let mut numbers = Buffer::zeroed(&device, 2, &streams.compute)?;
            let layers = model::layers(&options).into_iter();
            let layouts = layers.map(|layer| Layout::new(layer.parameters(), 3, options.shards));
            let (idle, compute) = (Box::new(Idle(numbers.clone())), &streams.compute);
            let mut trainer = Trainer::new(on, idle, layouts.collect(), &options, compute)?;
            trainer.step(&mut Site::Eager(&streams))?;
            let eager = std::mem::take(&mut trainer.calls);
            let mut captured = Captured::new(&mut trainer, &mut streams)?;
            assert_eq!(captured.calls, eager, "the calls of {options:?}");
            assert_eq!(trainer.calls, Calls::default(), "a capture does nothing");
            for round in 1..=3 {
                numbers.write(&[f64::from(round), 1.0], &streams.compute)?;
                captured.launch(&*device, &streams.compute)?;
                let sums = numbers.read(&streams.compute)?;
                assert_eq!(sums, [3.0 * f64::from(round), 3.0], "replay {round}");
            }
            drop(captured);
            let outcome = trainer.train(&mut streams)?;
            assert_eq!(outcome.kept.held_bytes, 0);
            Ok(())
        });
        ranks.into_iter().for_each(|rank| rank.unwrap());
    }

    #[test]
    fn a_captured_step_makes_the_calls_of_an_eager_one_at_each_replay() {
        for memory in [
            "--tensors pooled",
            "--tensors ordinary",
            "--symmetric off",
            "--tensors ordinary --in-place --layers 0",
        ] {
            // A run of one step more, which is eager, ends and closes.
            replayed(&format!("{memory} --steps 1"));
            replayed(&format!("{memory} --steps 7 --flip 2"));
        }
    }
}
