package backend

// StreamFiles is the number of open files that event streams may use. The rest is for
// purchases, because a stream holds its file for minutes.
func StreamFiles(files uint64) uint64 { return max(1, files/2) }
