module chartcheck

go 1.22

require (
	k8s.io/api v0.31.3
	sigs.k8s.io/yaml v1.4.0
)
