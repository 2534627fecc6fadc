package queue

// What the external tests of this package know of its inside.
var (
	AckHash      = ackScript.Hash()
	CompleteHash = completeScript.Hash()
	DequeueHash  = dequeueScript.Hash()
	ExtendHash   = extendScript.Hash()
	PassHash     = passScript.Hash()
	RejectHash   = rejectScript.Hash()
)

// MaxUnsettled is maxUnsettled.
const MaxUnsettled = maxUnsettled
