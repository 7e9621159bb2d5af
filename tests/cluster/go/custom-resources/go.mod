module kfp-tfjob/tests/cluster/custom-resources

go 1.25.8

require (
	github.com/aws/karpenter-provider-aws v1.0.0
	github.com/kedacore/keda/v2 v2.21.0
	github.com/kserve/kserve v0.20.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	istio.io/api v1.32.0
	sigs.k8s.io/karpenter v1.9.0
)
