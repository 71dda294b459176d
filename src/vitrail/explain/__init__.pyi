from . import inside as inside, scores as scores
from .attribution import Attribution as Attribution
from .compare import Comparison as Comparison, compare as compare
from .forward import Gridded as Gridded
from .methods import METHODS as METHODS, Method as Method, Option as Option
from .methods.attcat import attcat as attcat
from .methods.attention_grad_cam import attention_grad_cam as attention_grad_cam
from .methods.conservative import Balance as Balance, balance_sheet as balance_sheet, conservative as conservative
from .methods.cross_attention import cross_attention as cross_attention
from .methods.generic_attention import generic_attention as generic_attention
from .methods.grad_cam import grad_cam as grad_cam
from .methods.gradient_rollout import gradient_rollout as gradient_rollout
from .methods.head_view import head_view as head_view
from .methods.hires_cam import hires_cam as hires_cam
from .methods.input_x_gradient import input_x_gradient as input_x_gradient
from .methods.integrated_gradients import integrated_gradients as integrated_gradients
from .methods.kernel_shap import kernel_shap as kernel_shap
from .methods.legrad import legrad as legrad
from .methods.occlusion import occlusion as occlusion
from .methods.raw_attention import raw_attention as raw_attention
from .methods.rise import rise as rise
from .methods.rollout import rollout as rollout
from .methods.saliency import saliency as saliency
from .methods.smooth_grad import smooth_grad as smooth_grad
from .methods.tam import tam as tam
from .reporting.explained import ExplainedImage as ExplainedImage
from .reporting.report import Report as Report, report as report
from .sanity_check import SanityReport as SanityReport, sanity_check as sanity_check
from .target import Contrast as Contrast, Target as Target
from .verdict import Trust as Trust, trust as trust
