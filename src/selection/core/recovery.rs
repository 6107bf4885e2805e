//! Verbs of dumps: everything cached, written for a peer. Reading one is [`crate::selection::dump::DumpImport`].

use std::io;

use super::SelectionCore;

impl SelectionCore {
    /// Writes the dump of all partitions (`GET /dump`), run by run. Blocks the calling thread as long as `out` does,
    /// and no selection: call it off the async threads, with a writer that hands pieces to the response.
    ///
    /// # Errors
    /// The first error of `out`; the rest is left out.
    pub fn write_dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let _ = out;
        todo!()
    }
}
