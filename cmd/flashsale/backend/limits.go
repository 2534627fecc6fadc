package backend

// StreamFiles is how many of the files that a process may have open can be event
// streams. The rest stays for purchases: a stream holds its file for minutes.
func StreamFiles(files uint64) uint64 { return max(1, files/2) }
