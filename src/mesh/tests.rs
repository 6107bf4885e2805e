//! Two and three meshes over real sockets, without HTTP.
