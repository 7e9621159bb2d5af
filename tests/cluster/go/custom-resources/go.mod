module kfp-tfjob/tests/cluster/custom-resources

go 1.25.8

require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/kserve/kserve v0.20.0
)
