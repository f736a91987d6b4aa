//! Graphs with hooks around their use.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use collectives_core::error::Result;
use collectives_core::graph::{GraphExecutable, GraphTemplate};
use collectives_core::memory::Memory;
use collectives_core::stream::StreamRef;

/// What to do with a launch, with a branch that ends, or with a graph that becomes a node of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "these are all")]
pub enum Launch {
    /// Do it.
    Go,
    /// Do nothing and succeed.
    Skip,
}

/// What may be done around the use of one graph. Every hook does nothing by default.
pub trait GraphHooks: Any + Debug + Send + Sync {
    /// An executable is about to be launched.
    ///
    /// # Errors
    ///
    /// What the launch fails with, without being made.
    fn launching(&self, stream: &StreamRef) -> Result<Launch> {
        let _ = stream;
        Ok(Launch::Go)
    }

    /// An executable was launched; the hook may replace the outcome.
    ///
    /// # Errors
    ///
    /// The outcome, unless the hook changes it.
    fn launched(&self, outcome: Result<()>) -> Result<()> {
        outcome
    }

    /// The hooks of an executable, or `None` to make it forget what the template knows.
    fn for_executable(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>>;

    /// The hooks of a copy of the template.
    fn for_duplicate(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>>;

    /// Whether an executable that is updated takes over the other graph's hooks.
    fn follows_updates(&self) -> bool {
        true
    }

    /// An update was refused or not; the hook may replace the outcome.
    ///
    /// # Errors
    ///
    /// The outcome, unless the hook changes it.
    fn updated(&self, outcome: Result<()>) -> Result<()> {
        outcome
    }

    /// Memory to own beside what the backend's graph owns.
    fn owned(&self) -> &[Memory] {
        &[]
    }
}

/// A template with hooks.
#[derive(Debug)]
pub(crate) struct Template {
    inner: Box<dyn GraphTemplate>,
    hooks: Option<Arc<dyn GraphHooks>>,
    owned: Vec<Memory>,
}

fn all_owned(inner: &[Memory], hooks: Option<&Arc<dyn GraphHooks>>) -> Vec<Memory> {
    let more = hooks.map_or(&[][..], |hooks| hooks.owned());
    inner.iter().chain(more).cloned().collect()
}

impl Template {
    pub(crate) fn new(inner: Box<dyn GraphTemplate>, hooks: Arc<dyn GraphHooks>) -> Self {
        Self::with(inner, Some(hooks))
    }

    /// The backend's own graph, and the hooks.
    pub(crate) fn parts(&self) -> (&dyn GraphTemplate, Option<&Arc<dyn GraphHooks>>) {
        (&*self.inner, self.hooks.as_ref())
    }

    fn with(inner: Box<dyn GraphTemplate>, hooks: Option<Arc<dyn GraphHooks>>) -> Self {
        Self {
            owned: all_owned(inner.owned(), hooks.as_ref()),
            inner,
            hooks,
        }
    }
}

impl GraphTemplate for Template {
    fn duplicate(&self) -> Result<Box<dyn GraphTemplate>> {
        let hooks = self.hooks.clone().and_then(GraphHooks::for_duplicate);
        Ok(Box::new(Self::with(self.inner.duplicate()?, hooks)))
    }

    fn instantiate(&self) -> Result<Box<dyn GraphExecutable>> {
        let inner = self.inner.instantiate()?;
        let hooks = self.hooks.clone().and_then(GraphHooks::for_executable);
        Ok(Box::new(Executable {
            owned: all_owned(inner.owned(), hooks.as_ref()),
            inner,
            hooks,
        }))
    }

    fn owned(&self) -> &[Memory] {
        &self.owned
    }

    fn node_count(&self) -> usize {
        self.inner.node_count()
    }
}

#[derive(Debug)]
struct Executable {
    inner: Box<dyn GraphExecutable>,
    hooks: Option<Arc<dyn GraphHooks>>,
    owned: Vec<Memory>,
}

impl GraphExecutable for Executable {
    unsafe fn launch(&mut self, stream: &StreamRef) -> Result<()> {
        let Some(hooks) = &self.hooks else {
            // SAFETY: By the caller.
            return unsafe { self.inner.launch(stream) };
        };
        if hooks.launching(stream)? == Launch::Skip {
            return Ok(());
        }
        // SAFETY: By the caller.
        let outcome = unsafe { self.inner.launch(stream) };
        hooks.launched(outcome)
    }

    fn update(&mut self, from: &dyn GraphTemplate) -> Result<()> {
        let any: &dyn Any = from;
        let Some(template) = any.downcast_ref::<Template>() else {
            return self.inner.update(from);
        };
        if let Err(error) = self.inner.update(&*template.inner) {
            return match &self.hooks {
                Some(hooks) => hooks.updated(Err(error)),
                None => Err(error),
            };
        }
        let follows = self
            .hooks
            .as_ref()
            .is_none_or(|hooks| hooks.follows_updates());
        if follows {
            self.hooks = template.hooks.clone().and_then(GraphHooks::for_executable);
        }
        self.owned = all_owned(self.inner.owned(), self.hooks.as_ref());
        Ok(())
    }

    fn owned(&self) -> &[Memory] {
        &self.owned
    }
}
