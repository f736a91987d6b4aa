//! The backend that needs nothing: ranks are threads, memory is memory.
