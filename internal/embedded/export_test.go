package embedded

// StartAt starts a server as Start does, as if that had been at another time.
var StartAt = startAt
