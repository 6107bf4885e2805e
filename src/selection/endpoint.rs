//! Syntax of ZMQ endpoints, as the reference checks it (spec http 4.3). Pure: nothing is resolved or opened.

/// Checks `endpoint`.
///
/// # Errors
/// The full text, ``invalid ZMQ endpoint `E`: reason``.
pub fn check_zmq_endpoint(endpoint: &str) -> Result<(), String> {
    let _ = endpoint;
    todo!()
}
