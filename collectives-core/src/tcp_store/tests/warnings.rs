//! The warnings that one thread causes.
//!
//! One subscriber serves the whole process. While `tracing` knows a single scoped subscriber, a
//! thread without one that meets a call site first would switch that site off for all threads.

use std::cell::RefCell;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

thread_local! {
    static COLLECTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `body` and returns what was warned of on this thread meanwhile, one text a warning.
pub(crate) fn during(body: impl FnOnce()) -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Collector).expect("the only subscriber");
    });
    COLLECTED.set(Some(Vec::new()));
    body();
    COLLECTED.take().expect("set before the body")
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        COLLECTED.with_borrow_mut(|collected| {
            if let Some(texts) = collected {
                let mut text = Text(String::new());
                event.record(&mut text);
                texts.push(text.0);
            }
        });
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?};");
    }
}
