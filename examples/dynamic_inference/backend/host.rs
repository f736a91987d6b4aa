//! Ranks as threads on the embedded backend.

use std::error::Error;

use collectives_core::error::Result as CollectiveResult;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;

use super::{Job, NoGauge};
use crate::outcome::Outcome;
use crate::workload;

pub(super) fn run(job: &Job<'_>) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let granule = job.options.granule.get();
    let world = HostWorld::new(job.options.ranks)
        .model(move |_| DeviceModel::default().with_granule(granule));
    let outcomes = world.run(|comm| workload::serve(Box::new(comm), &NoGauge, job));
    Ok(outcomes.into_iter().collect::<CollectiveResult<_>>()?)
}
